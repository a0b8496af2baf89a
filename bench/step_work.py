"""What the benchmark of the training step gives to everybody alike: models, prompts, settings, recorded rollouts."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from peers import DEVICE
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

from hacpo_fast import config_file
from hacpo_fast.preparation import Preparation, prepare
from hacpo_fast.rollouts.engine import Sample
from hacpo_fast.tasks.rewards import load_reward, resolve_reward

ROOT = Path(__file__).parents[1]
# On one thread of a CPU, its time is what an idle core would take, and others who are at work disturb it least.
clock = time.perf_counter if DEVICE == "cuda" else time.process_time
STEPS = 12  # more than any benchmark takes
FAMILIES = {"llama": LlamaConfig, "qwen3": Qwen3Config}
Recorded = dict[tuple[int, str], list[list[Sample]]]  # by step and agent: the samples of each prompt


@dataclass(frozen=True)
class Work:
    """Agents and a task. micro_batch: sequences that the padded peers take at once, the fastest for them."""

    name: str
    settings: dict[str, Any]  # as a run has them
    micro_batch: int

    def prepared(self, algorithm: str = "gspo", **changes: Any) -> Preparation:
        """Checked settings and problems of a run with `algorithm`; changes: settings, __ in place of dots."""
        settings = copy.deepcopy(self.settings)
        for key, value in {"algorithm__name": algorithm, **changes}.items():
            *path, last = key.split("__")
            section = settings
            for part in path:
                section = section.setdefault(part, {})
            section[last] = value
        return prepare(config_file.validate(settings))


def quickstart(agents: Path) -> Work:
    """The README's first run, with the agents that `python -m hacpo_fast.demo` wrote to the folder `agents`."""
    settings = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    for name, agent in settings["agents"].items():
        agent["model"] = str(agents / name)
    settings["algorithm"]["advantage"] = {"eps": 1e-4}  # TRL's, which cannot be set
    settings["training"]["warmup_steps"] = 0
    return Work("quickstart", {**settings, **_bare()}, micro_batch=128)


def two_random_agents(folder: Path) -> Work:
    """Two architectures of 1.1 million parameters; responses are 32 tokens long on average and 128 at most."""
    shape = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3}
    agents = {
        name: word_agent(folder / name, family, shape, vocabulary=4096, seed=seed, mean_length=32)
        for seed, (name, family) in enumerate([("ann", "llama"), ("ben", "qwen3")])
    }
    return Work("random 1.1M", word_task(folder, agents, prompts=4, samples=8, length=128, updates=2), micro_batch=16)


def word_task(
    folder: Path, agents: dict[str, Path], prompts: int, samples: int, length: int, updates: int
) -> dict[str, Any]:
    """Settings of a run on prompts of 8 to 24 random words, half of whose answers are right."""
    draw = np.random.default_rng(0)
    rows = [" ".join(map(str, draw.integers(100, size=draw.integers(8, 25)))) for _ in range(prompts * STEPS)]
    problems = folder / "problems.jsonl"
    problems.write_text("".join(json.dumps({"prompt": row, "answer": ""}) + "\n" for row in rows))
    (folder / "odd.py").write_text(
        "def reward(response, answer, row):\n    return int((response.split() or '0')[0]) % 2\n"
    )
    return {
        "task": {"kind": "file", "name": str(problems), "reward": f"{folder / 'odd.py'}:reward", "holdout": 0},
        "agents": {name: {"model": str(model)} for name, model in agents.items()},
        "algorithm": {"advantage": {"eps": 1e-4}},
        "rollout": {
            "engine": "transformers", "prompts_per_step": prompts, "samples_per_prompt": samples,
            "max_prompt_tokens": 24, "max_response_tokens": length,
        },
        "training": {"minibatch_responses": prompts * samples // updates},
        **_bare(),
    }  # fmt: skip


def _bare() -> dict[str, Any]:
    return {
        "validation": {"every": 0},
        "run": {"steps": STEPS, "threads": 1, "tensorboard": False, "device": DEVICE},
    }


def word_agent(
    folder: Path, family: str, shape: dict[str, int], vocabulary: int, seed: int, mean_length: int | None = None
) -> Path:
    """Writes a random model whose tokens are the numbers from 0 on, as words: all of them are exchanged unchanged.

    mean_length: of its responses; so many of its tokens are end tokens. None: nearly all responses go on for ever.
    """
    ends = vocabulary // mean_length if mean_length else 1
    words = ["</s>", "<pad>", *map(str, range(vocabulary - ends - 1)), *(f"</s{i}>" for i in range(1, ends))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", padding_side="left",
        additional_special_tokens=words[len(words) - ends + 1 :],
    ).save_pretrained(folder)  # fmt: skip
    heads = max(2, shape["hidden_size"] // 64)
    config = FAMILIES[family](
        **shape, vocab_size=vocabulary, num_attention_heads=heads, num_key_value_heads=heads // 2 or 1,
        head_dim=shape["hidden_size"] // heads, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[0, *range(vocabulary - ends + 1, vocabulary)], pad_token_id=1
    )
    model.save_pretrained(folder)
    return folder


@dataclass
class Cost:
    """What a step did and took. Tokens are of all agents; trained ones are prompts and responses of all updates.

    computed: those of them that went through a model with a gradient, padding included. seconds: by `clock`.
    """

    generated: int = 0
    trained: int = 0
    computed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by phase; "total"


def problems_of(prepared: Preparation) -> Iterator[dict[str, Any]]:
    """All problems of the run in the order in which its steps take them, as rows of a data set."""
    for step in range(1, prepared.steps + 1):
        for problem in prepared.batch(step):
            yield {"prompt": problem.prompt, "answer": problem.answer or "", "id": problem.id}


def in_process_reward(prepared: Preparation) -> Callable[[str, str], float]:
    """The task's reward of a response and its reference answer, called where it stands."""
    reward = load_reward(resolve_reward(prepared.config.task))
    return lambda response, answer: float(reward(response, answer, {}))
