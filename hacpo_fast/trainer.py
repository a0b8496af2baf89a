"""The training step of HACPO (Appendix E, Algorithm 1), and the loop around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.capability import CapabilityTracker, capability_ratios
from hacpo_fast.engines import open_engines
from hacpo_fast.learner import Learner
from hacpo_fast.learner_batch import assemble
from hacpo_fast.mismatch import recompute
from hacpo_fast.policy.schedule import lr_factor
from hacpo_fast.preparation import Preparation
from hacpo_fast.reward_watch import RewardWatch
from hacpo_fast.rollouts.records import Rollout, RolloutPool, drop_failed_groups
from hacpo_fast.run.checkpoints import prune, write_whole
from hacpo_fast.run.output import RunOutput
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.seeds import Purpose, derive, rng
from hacpo_fast.run.signals import StopRequest
from hacpo_fast.step_record import agent_record, no_signal_share, sample_rollouts
from hacpo_fast.tasks import Problem, RewardResult, open_rewards
from hacpo_fast.validation import validate

STATE_FILE = "trainer.json"


class Trainer:
    """Loads all agents of a prepared run and trains them; to be closed after use.

    folder: where they are saved. checkpoint: one that this class wrote, to go on from as if nothing had been between.
    """

    def __init__(self, prepared: Preparation, folder: Path, checkpoint: Path | None = None):
        self.prepared, self.config, self.folder = prepared, prepared.config, folder
        self.agents = [
            Agent(i, card, self.config, prepared.device, checkpoint / card.name if checkpoint else None)
            for i, card in enumerate(prepared.cards)
        ]
        self.engines = open_engines(
            prepared.engine, [agent.policy for agent in self.agents], prepared.cards, self.config,
            [needs.kv_cache for needs in prepared.memory],
        )  # fmt: skip
        for agent, engine in zip(self.agents, self.engines.each, strict=True):
            agent.engine = engine
        self.capability = CapabilityTracker([agent.name for agent in self.agents], self.config.algorithm.capability)
        self.steps_done = 0
        self.noted_large_rewards = False
        task = self.config.task
        self.watch = RewardWatch(task.reward_failure, self._note)
        self.validation_watch = RewardWatch((self.config.validation.task or task).reward_failure, self._note)
        if checkpoint:
            self._load_state(checkpoint)

    def close(self) -> None:
        """Frees the engines; the agents keep their weights."""
        self.engines.close()

    def fit(self, output: RunOutput) -> bool:
        """Runs all steps and saves the agents. False: stopped on request after a step, with the agents saved."""
        self.output = output
        with ExitStack() as stack:
            self.rewards = stack.enter_context(open_rewards(self.config.task))
            self.validation_rewards = self.rewards
            if self.config.validation.task is not None:
                self.validation_rewards = stack.enter_context(open_rewards(self.config.validation.task))
            return self._run_steps()

    def _run_steps(self) -> bool:
        run, every = self.config.run, self.config.validation.every
        steps = self.prepared.steps
        if every and self.steps_done == 0:
            self.validate(0)
        with StopRequest(self.output.note) as stop:
            for step in range(self.steps_done + 1, steps + 1):
                with self._saving_on_failure(step):
                    self.output.step(self.step(step))
                    self.steps_done = step
                    if every and (step % every == 0 or step == steps):
                        self.validate(step)
                stopping = stop.requested and step < steps  # read once: a signal may come at any time
                if stopping or (run.save_every and (step % run.save_every == 0 or step == steps)):
                    saved = self.save_checkpoint()
                if stopping:
                    self.output.note(f"stopped after step {step} of {steps}; all that is needed to go on is in {saved}")
                    return False
        write_whole(self.folder / "agents", self._save_agents)
        return True

    def save_checkpoint(self) -> Path:
        """Writes all that later steps depend on. Random streams are functions of seed and step: they have no state."""

        def fill(folder: Path) -> None:
            for agent in self.agents:
                agent.save_training(folder / agent.name)
            state = {
                "steps_done": self.steps_done,
                "capability": self.capability.state_dict(),
                "updates": {agent.name: agent.updates for agent in self.agents},
            }
            (folder / STATE_FILE).write_text(json.dumps(state, indent=1))

        saved = write_whole(self.folder / "checkpoints" / f"step-{self.steps_done}", fill)
        prune(saved.parent, self.config.run.keep_checkpoints)
        return saved

    def _load_state(self, checkpoint: Path) -> None:
        state = json.loads((checkpoint / STATE_FILE).read_text())
        self.steps_done = state["steps_done"]
        self.capability.load_state_dict(state["capability"])
        for agent in self.agents:
            agent.updates = state["updates"][agent.name]

    def _save_agents(self, folder: Path) -> None:
        for agent in self.agents:
            agent.save(folder / agent.name)

    @contextmanager
    def _saving_on_failure(self, step: int) -> Iterator[None]:
        """Should what is inside fail, the agents are saved as they are then."""
        try:
            yield
        except Exception:
            if any(agent.updates for agent in self.agents):
                saved = write_whole(self.folder / "checkpoints" / f"failed-in-step-{step}", self._save_agents)
                self.output.note(f"step {step} failed; the agents as they are now are in {saved}")
            raise

    def step(self, step: int) -> dict[str, Any]:
        """Training step number `step` (from 1). Returns its record for the logs."""
        phases = Phases()
        problems = self.prepared.batch(step)
        pool, checked = self._collect(step, problems, phases)
        mismatch: dict[str, float] = {}
        if self.config.rollout.logprobs == "recompute" or self.config.algorithm.importance_correction != "none":
            with phases("recompute"):
                pool, mismatch = recompute(pool, self.agents, self._prompts, self.config)
        own = {agent.name: pool.of(agent.index) for agent in self.agents}
        capability = self.capability.update(
            {name: torch.from_numpy(part.reward[~part.dropped]) for name, part in own.items()}
        )
        ratios = capability_ratios(
            torch.tensor(list(capability.values()), dtype=torch.float64), self.config.algorithm.capability
        )
        # All denominators are in the pool by now: no agent's update can see another's new weights.
        learners = {}
        for agent in self.agents:
            self.output.phase(f"{agent.name} learns")
            with phases("learn", agent.name):
                learners[agent.name] = self._learn(step, agent, pool, ratios)

        batches = {name: learner.batch for name, learner in learners.items()}
        draw = rng(self.config.run.seed, Purpose.SAMPLE_LOG, step)
        run = self.config.run
        samples = sample_rollouts(step, pool, batches, max(run.save_rollouts, run.show_rollouts), draw)
        self.output.rollouts(samples, shown=run.show_rollouts)
        reward_max = self.config.algorithm.advantage.reward_max
        agents = {
            agent.name: agent_record(agent, pool, learners[agent.name], capability[agent.name], phases, reward_max)
            for agent in self.agents
        }
        for name, difference in mismatch.items():
            agents[name]["mismatch"] = difference
        return {
            "step": step,
            "time": phases.seconds(),
            "reward_p95_seconds": float(np.quantile([result.seconds for result in checked], 0.95)),
            "prompts": len(problems),
            "no_signal_share": no_signal_share(pool),
            "agents": agents,
        }

    def validate(self, step: int) -> None:
        """Answers the held-out problems with every agent."""
        phases, settings, problems = Phases(), self.config.validation, self.prepared.held_out
        scores = {}
        with phases("validate"):
            for agent in self.agents:
                self.output.phase(f"{agent.name} is validated")
                prompts = [self.prepared.held_out_tokens[agent.name][problem.id] for problem in problems]
                scores[agent.name] = validate(
                    agent.engine, agent.codec, problems, prompts, settings.sampling,
                    settings.max_response_tokens or agent.max_response_tokens, self.validation_rewards,
                    self.config.algorithm.advantage.reward_max,
                    derive(self.config.run.seed, Purpose.VALIDATION, step, agent.index),
                    partial(self.validation_watch.failures, f"validation at step {step}", agent.name),
                )  # fmt: skip
        updates = {agent.name: agent.updates for agent in self.agents}
        self.output.validation({"step": step, "validation": scores, "updates": updates, "time": phases.seconds()})

    def _collect(
        self, step: int, problems: Sequence[Problem], phases: Phases
    ) -> tuple[RolloutPool, list[RewardResult]]:
        """Every agent answers every prompt; also what the reward said. One agent's answers are verified while the next
        one samples."""
        pending = []
        for agent in self.agents:
            seed = derive(self.config.run.seed, Purpose.ROLLOUT, step, agent.index)
            self.output.phase(f"{agent.name} answers")
            with phases("rollout", agent.name):
                rollouts = agent.rollout(self._prompts(agent, problems), self.config.samples_per_prompt, seed)
            handle = self.rewards.submit([(rollout.text, problems[rollout.prompt]) for rollout in rollouts])
            pending.append((rollouts, handle))
        with phases("verify"):
            results = [result for _, handle in pending for result in handle.result()]
        rollouts = [rollout for own, _ in pending for rollout in own]
        self._watch_rewards(step, problems, rollouts, results, phases)
        verified = [
            replace(rollout, reward=result.value, reward_error=result.error)
            for rollout, result in zip(rollouts, results, strict=True)
        ]
        if self.config.task.reward_failure == "drop_group":
            verified = drop_failed_groups(verified, self.config.algorithm.shares)
        return RolloutPool(problems, [agent.name for agent in self.agents], verified), results

    def _watch_rewards(
        self, step: int, problems: Sequence[Problem], rollouts: Sequence[Rollout], results: Sequence[RewardResult],
        phases: Phases,
    ) -> None:  # fmt: skip
        """Tells of rewards that fail, are slow or are larger than the settings say; some failures stop the run."""
        checks = [
            (self.agents[rollout.source].name, (rollout.text, problems[rollout.prompt], result))
            for rollout, result in zip(rollouts, results, strict=True)
        ]
        for agent in self.agents:
            self.watch.failures(f"step {step}", agent.name, [check for name, check in checks if name == agent.name])
        self.watch.slow(f"step {step}", phases.spent("verify", ""), phases.seconds()["total"], checks)
        self._note_large_rewards(max((result.value for result in results), default=0.0))

    def _note(self, text: str) -> None:
        self.output.note(text)

    def _note_large_rewards(self, largest: float) -> None:
        limit = self.config.algorithm.advantage.reward_max
        if largest > limit and not self.noted_large_rewards:
            self.noted_large_rewards = True
            self.output.note(f"a reward of {largest:g} is above algorithm.advantage.reward_max={limit:g}: raise it")

    def _learn(self, step: int, agent: Agent, pool: RolloutPool, ratios: Tensor) -> Learner:
        config = self.config
        batch = assemble(
            pool, agent.index, agent.codec, self._prompts(agent, pool.problems), agent.context, ratios,
            config.algorithm, config.rollout.score_eos,
        )  # fmt: skip
        training = config.training
        factor = lr_factor(step - 1, self.prepared.steps, training.warmup_steps, training.schedule)
        learner = Learner(agent, batch, config, agent.lr * factor)
        learner.learn(rng(config.run.seed, Purpose.MINIBATCH, step, agent.index))
        return learner

    def _prompts(self, agent: Agent, problems: Sequence[Problem]) -> list[np.ndarray]:
        tokens = self.prepared.prompt_tokens[agent.name]
        return [tokens[problem.id] for problem in problems]
