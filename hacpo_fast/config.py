"""Every setting of a run: its type, default, meaning and limits, in one place.

`hacpo_fast.config_file.load` reads a `Config` from YAML and `section.key=value` overrides; `--help` prints this file.
Equation and section numbers are those of arXiv 2603.02604. Defaults follow the paper where it says what it used.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hacpo_fast.algorithm.presets import PRESETS
from hacpo_fast.limits import (
    MOST_RESPONSES,
    NAME,
    BelowOne,
    Count,
    CountFromZero,
    GiB,
    NonNegative,
    PathText,
    Positive,
    Processes,
    Samples,
    Seed,
    Share,
    Temperature,
    known_device,
)
from hacpo_fast.tasks.names import instead_of


class Section(BaseModel):
    """A group of settings. Unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True, frozen=True)


class RunConfig(Section):
    output: PathText | None = Field(
        None, description="Folder of the run; empty: runs/<config>-<algorithm>-<date>-<time>. Must not exist"
    )
    seed: Seed = Field(0, description="Fixes data order, sampling and mini-batches on a given machine")
    steps: Count | None = Field(None, description="Training steps; empty: one pass over the training problems")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: Processes | None = Field(None, description="CPU threads of torch; empty: torch's own choice")
    resume: PathText = Field(
        "none",
        description="auto: go on with run.output, or the last run of this config, from its newest whole checkpoint; "
        "the path of a checkpoint; or none",
    )
    save_every: CountFromZero = Field(
        25, description="Steps between checkpoints (0: none, the agents are saved at the end)"
    )
    keep_checkpoints: Count = Field(2, description="Older checkpoints are removed")
    keep_best: str | None = Field(
        None,
        description="Validation score whose best checkpoint stays and is linked as `best`: greedy/accuracy is the mean "
        "over the agents, alice/greedy/accuracy that of one; empty: off",
    )
    save_rollouts: CountFromZero = Field(4, description="Responses per agent and step written to rollouts.jsonl")
    show_rollouts: CountFromZero = Field(0, description="Responses per agent and step printed in the terminal")
    profile_steps: list[Count] = Field(
        [], description="Steps, e.g. [2, 3], whose trace and top operators are written to profile/ in the run's folder"
    )
    tensorboard: bool = Field(True, description="Write TensorBoard event files where tensorboard is installed")
    wandb_project: str | None = Field(None, description="Weights & Biases project; empty: off")

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        return known_device(device)


class TaskConfig(Section):
    kind: Literal["reasoning_gym", "file", "hub", "benchmark"] = Field(
        description="Source of problems: a reasoning-gym generator, a JSONL, JSON, CSV or Parquet file, a data set of "
        "the hub, a benchmark of mathematics"
    )
    name: PathText = Field(
        min_length=1,
        description="Generator (chain_sum), path (problems.jsonl), hub name (user/data) or benchmark (math500, math, "
        "gsm8k, aime2025, amc23, minerva, olympiadbench)",
    )
    source: PathText | None = Field(
        None, description="benchmark: its file, folder or hub name; empty: where the hub has it"
    )
    params: dict[str, Any] = Field({}, description="reasoning_gym: the generator's own parameters")
    size: Count = Field(
        4000, le=10_000_000, description="reasoning_gym: problems to generate (repeated ones are dropped)"
    )
    seed: Seed = Field(0, description="reasoning_gym: seed of the generator")
    subset: str | None = Field(None, description="hub, benchmark: configuration of the data set")
    split: str | None = Field(
        None, description="hub, benchmark: split of the data set; empty: train, and test of a benchmark"
    )
    prompt: str | None = Field(
        None,
        description="Prompt as a template over a row's fields, literal braces as {{ }}; "
        "empty: {question} (reasoning_gym), {question} and where to put the answer (benchmark), or {prompt}",
    )
    messages: str | None = Field(None, description="Column with chat messages (role, content); replaces prompt")
    answer: str = Field(
        "answer", description="Column with the reference answer; your own reward and reasoning_gym may do without"
    )
    system_prompt: str | None = Field(
        None, description="Put before conversations that have no system message of their own"
    )
    reward: PathText | None = Field(
        None,
        description="reasoning_gym, math, exact, numeric, regex, or your own as module:function or file.py:function; "
        "empty: reasoning_gym for that kind, math otherwise",
    )
    reward_options: dict[str, Any] = Field({}, description="Keyword arguments of the reward, e.g. pattern for regex")
    reward_failure: Literal["zero", "drop_group", "stop"] = Field(
        "zero",
        description="When a check fails (exception, no finite number, too slow, crash). zero: the response gets 0; "
        "drop_group: nobody learns from the responses to that prompt, in validation it gets 0; stop: the run ends",
    )
    reward_timeout: Positive = Field(
        10.0, le=86_400, description="Seconds that one check may take before it has failed"
    )
    reward_memory_gb: GiB | None = Field(
        4.0, description="GiB that checks may allocate beyond what loading the reward took; empty: no limit"
    )
    reward_workers: Processes = Field(2, description="Processes that check answers")
    holdout: Share = Field(0.2, description="Share of problems held out for validation, chosen by a hash of their text")


class AgentConfig(Section):
    model: PathText = Field(min_length=1, description="Folder or hub name of a causal language model")
    tokenizer: PathText | None = Field(None, description="Folder or hub name of its tokenizer; empty: the model's")
    revision: str | None = Field(None, description="Revision on the hub")
    trust_remote_code: bool = Field(False, description="Run Python code that ships with the model")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Of the weights; auto: bfloat16 on a GPU, float32 on a CPU. bfloat16 keeps float32 masters"
    )
    prompt_format: Literal["auto", "chat", "plain"] = Field(
        "auto", description="chat: the tokenizer's chat template; plain: prompt_template; auto: chat where there is one"
    )
    prompt_template: str = Field("{prompt}", description="plain: text around the prompt")
    chat_template_options: dict[str, Any] = Field(
        {}, description="Variables of the chat template, e.g. enable_thinking"
    )
    temperature: Temperature | None = Field(None, description="Sampling temperature; empty: rollout.temperature")
    max_response_tokens: Count | None = Field(None, description="Empty: rollout.max_response_tokens")
    lr: Positive | None = Field(None, description="Learning rate; empty: training.lr")
    kv_cache_gb: GiB | None = Field(None, description="vLLM: GiB of the KV cache; empty: rollout.kv_cache_gb")

    @field_validator("model", "tokenizer")
    @classmethod
    def _home(cls, place: str | None) -> str | None:
        return os.path.expanduser(place) if place else place

    @field_validator("prompt_template")
    @classmethod
    def _has_prompt(cls, template: str) -> str:
        if "{prompt}" not in template:
            raise ValueError("must contain {prompt}")
        return template


class RolloutConfig(Section):
    engine: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="What generates the responses; auto: vLLM where it is installed and serves all the models"
    )
    weights: Literal["auto", "shared", "copy", "reload"] = Field(
        "auto",
        description="vLLM: policy and engine share their weights, or they are copied or reloaded before every rollout; "
        "auto: the first of these that passes a check at the start",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="vLLM: of the engine's weights; auto: the agent's"
    )
    kv_cache_gb: GiB | None = Field(
        None,
        description="vLLM: GiB of each agent's KV cache; empty: what batch_sequences need, or a share of what is left",
    )
    prompts_per_step: Count = Field(128, description="Prompts that all agents answer in one step")
    samples_per_prompt: Samples = Field(
        8, description="G: responses of one agent to one prompt (gspo_x2 takes twice as many)"
    )
    temperature: Temperature = Field(1.0, description="Of sampling; all log-probs are taken at it")
    max_prompt_tokens: Count = Field(1024, description="Problems with a longer prompt for any agent are left out")
    max_response_tokens: Count = Field(4096, description="A response is cut there")
    batch_sequences: Count = Field(256, description="Sequences that an engine samples at once")
    logprobs: Literal["engine", "recompute"] = Field(
        "engine",
        description="Rollout-time log-probs: as the engine reports them, or scored again before the first update",
    )
    score_eos: bool = Field(True, description="The end token of an agent's own response belongs to its mean log-prob")
    max_mismatch: Positive = Field(
        0.1,
        description="Stop when engine and policy log-probs of own tokens differ by more than this on average (nats)",
    )


class CapabilityConfig(Section):
    metric: Literal["mean_reward", "positive_rate"] = Field(
        "mean_reward", description="What an agent's own rewards are summed up to: their mean, or the share above 0"
    )
    window: Count = Field(5, description="K: steps in the moving average (Eq. 8)")
    floor: Positive = Field(1e-8, description="Smallest capability of a step")
    ratio_min: Positive = Field(0.1, description="Lower bound of the ratio source/learner")
    ratio_max: Positive = Field(10.0, description="Upper bound of the ratio source/learner")

    @model_validator(mode="after")
    def _ordered(self) -> CapabilityConfig:
        if not self.ratio_min <= 1 <= self.ratio_max:
            raise ValueError("ratio_min <= 1 <= ratio_max must hold: agents of equal capability have the ratio 1")
        return self


class AdvantageConfig(Section):
    cross: Literal["learner", "source"] = Field(
        "learner", description="Whose baseline a response of another agent is held against: Eq. 50 or Eq. 10"
    )
    capability_baseline: bool = Field(True, description="Weigh rewards by capability in the baseline (Eq. 6)")
    modulation: bool = Field(True, description="Weigh other agents' responses by their capability (Eq. 10)")
    uniform_guard: bool = Field(True, description="Equal rewards of a prompt give advantages of exactly 0")
    reward_max_guard: bool = Field(True, description="A baseline above reward_max is replaced by the own mean reward")
    reward_max: float = Field(1.0, description="Largest possible reward")
    eps: Positive = Field(1e-6, description="Added to the standard deviation")


class AlgorithmConfig(Section):
    preset: str | None = Field(
        None,
        description="A method or ablation by name, listed at the end of --help. Settings beside it win over it; "
        "on the command line it wins over those of the file",
    )
    name: Literal["hacpo", "gspo", "gspo_x2", "grpo", "naive"] = Field(
        "hacpo",
        description="hacpo; gspo, gspo_x2 and grpo train every agent alone; naive shares without HACPO's mechanisms",
    )
    own_clip_low: NonNegative = Field(3e-4, description="Own sequence ratios are clipped at 1 - this (Eq. 12)")
    own_clip_high: NonNegative = Field(4e-4, description="and at 1 + this")
    token_clip_low: NonNegative = Field(0.2, description="grpo: token ratios are clipped at 1 - this")
    token_clip_high: NonNegative = Field(0.28, description="grpo: and at 1 + this")
    cross_clip: bool = Field(True, description="Discard other agents' responses whose ratio is out of range (Eq. 13)")
    cross_lower: Share = Field(0.8, description="1 - delta: lower end of that range at the first update of a step")
    cross_lower_step: NonNegative = Field(0.025, description="It rises by this with every update of the step")
    cross_upper: Positive = Field(1.0, description="Upper end of that range")
    cross_bound: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="adaptive: cross_lower holds for the first step; then the lower end keeps cross_live_target live",
    )
    cross_live_target: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="adaptive: share of other agents' responses that is to lie in the range"
    )
    alpha: NonNegative = Field(1.0, description="Exponent of the ratio as a weight of other agents' responses (Eq. 14)")
    log_ratio_clamp: Positive = Field(  # e^80 is about the largest that float32 can hold
        10.0, le=80, description="Log-ratios are clamped to +- this; no gradient outside"
    )
    naive_reference: Literal["source", "learner"] = Field(
        "source",
        description="naive: the ratio's denominator is the source's rollout policy, or the learner's own old one",
    )
    minibatch_order: Literal["own_first", "mixed"] = Field(
        "own_first",
        description="own_first: own responses, then the others' by source; mixed: both in every mini-batch",
    )
    kl_coef: NonNegative = Field(0.0, description="Weight of the k3 KL to the initial policy, on own responses")
    importance_correction: Literal["none", "token", "sequence"] = Field(
        "none",
        description="Weigh what the engine sampled by policy/engine probability, for engines of lower precision",
    )
    importance_cap: Positive = Field(2.0, description="These weights are cut there")
    capability: CapabilityConfig = CapabilityConfig()
    advantage: AdvantageConfig = AdvantageConfig()

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, preset: str | None) -> str | None:
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"'{preset}' is not a preset; {instead_of(preset, PRESETS)}")
        return preset

    @model_validator(mode="after")
    def _range(self) -> AlgorithmConfig:
        if self.cross_bound == "adaptive" and not self.cross_clip:
            raise ValueError("cross_bound=adaptive moves the range that cross_clip=false switches off; choose one")
        if self.cross_lower > self.cross_upper:
            raise ValueError(f"cross_lower ({self.cross_lower}) is above cross_upper ({self.cross_upper})")
        return self

    @property
    def shares(self) -> bool:
        """Whether agents train on each other's responses."""
        return self.name in ("hacpo", "naive")


class TrainingConfig(Section):
    minibatch_responses: Count = Field(512, description="Responses per optimiser update, own and others' together")
    token_budget: Count = Field(16384, description="Tokens packed into one micro-batch; does not change the result")
    share_prompts: Literal["auto", True, False] = Field(
        "auto",
        description="Responses to a prompt share one copy of it where that saves enough tokens to be faster; auto: if "
        "a check at the start finds it exact, true: or else stop",
    )
    lr: Positive = Field(1e-6, description="Learning rate of AdamW")
    betas: tuple[BelowOne, BelowOne] = Field((0.9, 0.95), description="Of AdamW")
    adam_eps: Positive = Field(1e-8, description="Of AdamW")
    weight_decay: NonNegative = Field(0.0, description="Of AdamW")
    max_grad_norm: Positive = Field(1.0, description="Gradients are scaled down to this norm")
    max_skipped_updates: Count = Field(
        5,
        description="An update whose loss or gradient is not finite is left out; after so many in a row of one agent "
        "the run stops, with what python -m hacpo_fast.replay needs",
    )
    warmup_steps: CountFromZero = Field(0, description="Steps in which the learning rate rises from 0")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After the warm-up, down to 0")
    score_first: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Score other agents' responses without gradient and train on those inside the clip range only; "
        "auto: when the last steps say that it saves time. Does not change the result",
    )
    gradient_checkpointing: bool = Field(False, description="Less memory for activations, more time")
    attention: Literal["auto", "flash_attention_3", "flash_attention_2", "varlen", "sdpa"] = Field(
        "auto",
        description="Of packed sequences: flash-attn, torch's varlen kernel, or one call for each sequence; auto: the "
        "first of these that is there and fits the device",
    )
    layers: Literal["auto", "liger", "torch"] = Field(
        "auto",
        description="Norms, rotary embeddings and gated MLPs: fused by liger-kernel, or the model's own; auto: liger "
        "on a GPU where it is installed and computes the same",
    )
    offload_optimizer: bool = Field(
        False, description="On a GPU: AdamW's masters and moments lie in the host's memory between updates"
    )


class SamplingConfig(Section):
    temperature: NonNegative = Field(0.0, le=100, description="0: greedy")
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = Field(1.0, description="Nucleus sampling; 1: off")
    top_k: CountFromZero = Field(0, description="Only the k most likely tokens; 0: all")
    samples: Samples = Field(1, description="k: responses per problem, for avg@k, pass@k and best@k")

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, temperature: float) -> float:
        if 0 < temperature < 0.01:
            raise ValueError(f"{temperature:g} is too low to sample at: use 0 (greedy) or at least 0.01")
        return temperature

    @model_validator(mode="after")
    def _greedy_once(self) -> SamplingConfig:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("greedy answers (temperature 0) are all equal: set samples to 1 or a temperature")
        return self

    @property
    def scores(self) -> list[str]:
        """Names of what is measured, see `run.metrics.summarise_samples`."""
        if self.samples == 1:
            return ["accuracy", "reward"]
        powers = [f"pass@{2**power}" for power in range(self.samples.bit_length())]
        return [f"avg@{self.samples}", *powers, f"best@{self.samples}"]


class ValidationConfig(Section):
    every: CountFromZero = Field(
        10, description="Steps between validations, also before the first and after the last; 0: none"
    )
    problems: Count = Field(200, description="Held-out problems to answer, at most")
    task: TaskConfig | None = Field(None, description="Problems to validate on; empty: those held out of the task")
    sampling: dict[str, SamplingConfig] = Field(
        {"greedy": SamplingConfig()}, description="Named ways to sample, each with temperature, top_p, top_k, samples"
    )
    max_response_tokens: Count | None = Field(None, description="Empty: the agent's own limit")

    @field_validator("sampling")
    @classmethod
    def _names(cls, sampling: dict[str, SamplingConfig]) -> dict[str, SamplingConfig]:
        if not sampling:
            raise ValueError("name at least one way to sample")
        for name in sampling:
            if not re.fullmatch(NAME, name):
                raise ValueError(f"name '{name}': use letters, digits, - and _ (it names curves)")
        return sampling


class Config(Section):
    run: RunConfig = RunConfig()
    task: TaskConfig
    agents: dict[str, AgentConfig] = Field(description="By name: one section each")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rollout: RolloutConfig = RolloutConfig()
    training: TrainingConfig = TrainingConfig()
    validation: ValidationConfig = ValidationConfig()

    @field_validator("agents")
    @classmethod
    def _names(cls, agents: dict[str, AgentConfig]) -> dict[str, AgentConfig]:
        if not agents:
            raise ValueError("name at least one agent")
        for name in agents:
            if not re.fullmatch(NAME, name):
                raise ValueError(f"agent name '{name}': use letters, digits, - and _ (it names folders)")
        if len({name.lower() for name in agents}) < len(agents):  # one folder, on some file systems
            raise ValueError(f"agent names {', '.join(agents)}: two differ by upper and lower case alone")
        return agents

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        group = self.samples_per_prompt * (len(self.agents) if self.algorithm.shares else 1)
        if group < 2:
            raise ValueError(
                "rollout.samples_per_prompt: one response per prompt has no advantage over itself; use at least 2"
            )
        responses = self.rollout.prompts_per_step * self.samples_per_prompt * len(self.agents)
        if responses > MOST_RESPONSES:
            raise ValueError(
                f"rollout.prompts_per_step, rollout.samples_per_prompt: {responses:,} responses of all agents in one "
                f"step are more than can be held at once; at most {MOST_RESPONSES:,}"
            )
        if self.validation.every and self.validation.task is None and self.task.holdout == 0:
            raise ValueError(
                "validation.every: nothing to validate on, since task.holdout is 0; "
                "raise it, give validation.task, or set validation.every=0"
            )
        if self.algorithm.importance_correction != "none" and self.rollout.logprobs == "recompute":
            raise ValueError(
                "algorithm.importance_correction: it weighs by the engine's log-probs, which "
                "rollout.logprobs=recompute drops; set rollout.logprobs=engine (both score the responses again)"
            )
        if self.run.keep_best is not None:
            self._check_keep_best(self.run.keep_best)
        return self

    def _check_keep_best(self, metric: str) -> None:
        if not self.validation.every:
            raise ValueError("run.keep_best: there is no validation, since validation.every is 0")
        known = [f"{way}/{name}" for way, one in self.validation.sampling.items() for name in one.scores]
        if metric not in (*known, *(f"{agent}/{one}" for agent in self.agents for one in known)):
            raise ValueError(
                f"run.keep_best: no validation score '{metric}'; there are {', '.join(known)}, "
                f"each also with an agent in front ({next(iter(self.agents))}/{known[0]})"
            )

    @property
    def samples_per_prompt(self) -> int:
        """G of this run: gspo_x2 spends twice the rollouts of the others."""
        return self.rollout.samples_per_prompt * (2 if self.algorithm.name == "gspo_x2" else 1)

    @property
    def responses_per_agent(self) -> int:
        """That each agent learns from in a step, where none is left out: its own and, if they share, the others'."""
        sources = len(self.agents) if self.algorithm.shares else 1
        return self.rollout.prompts_per_step * self.samples_per_prompt * sources

    @property
    def updates_per_step(self) -> int:
        """Optimiser updates of each agent in such a step, see `algorithm.minibatch`."""
        updates = -(-self.responses_per_agent // self.training.minibatch_responses)
        mixed = self.algorithm.minibatch_order == "mixed"  # whole prompts
        return min(updates, self.rollout.prompts_per_step) if mixed else updates

    @property
    def old_policy_is_denominator(self) -> bool:
        """Whether ratios are against the learner before its first update, and not against the pool's log-probs."""
        if self.algorithm.name == "naive":
            return self.algorithm.naive_reference == "learner"
        return self.rollout.logprobs == "recompute" and not self.algorithm.shares

    @property
    def scores_rollouts(self) -> bool:
        """Whether every response is scored by its source's policy before any update."""
        if self.algorithm.importance_correction != "none":
            return True
        return self.rollout.logprobs == "recompute" and not self.old_policy_is_denominator

    def temperature(self, agent: str) -> float:
        return self.agents[agent].temperature or self.rollout.temperature

    def max_response_tokens(self, agent: str) -> int:
        return self.agents[agent].max_response_tokens or self.rollout.max_response_tokens

    def max_sequence_tokens(self, agent: str) -> int:
        """Prompt and response, in training or validation."""
        longest = max(self.max_response_tokens(agent), self.validation.max_response_tokens or 0)
        return self.rollout.max_prompt_tokens + longest

    def kv_cache_bytes(self, agent: str) -> int | None:
        gigabytes = self.agents[agent].kv_cache_gb or self.rollout.kv_cache_gb
        return None if gigabytes is None else int(gigabytes * (1 << 30))

    def lr(self, agent: str) -> float:
        return self.agents[agent].lr or self.training.lr
