"""Small real runs for tests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tiny
import torch
from safetensors.torch import load_file

from hacpo_fast import config_file
from hacpo_fast.collector import Collector
from hacpo_fast.config import Config
from hacpo_fast.learner import Learner
from hacpo_fast.learner_batch import assemble
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.place import Place
from hacpo_fast.run.telemetry import read_metrics
from hacpo_fast.tasks import open_rewards
from hacpo_fast.train import run


def write_models(folder: Path) -> dict[str, Path]:
    """Three agents that differ in architecture and tokenizer."""
    letters = "0123456789+-*/=;.,:A abcdefghijklmnopqrstuvwxyzBCDEFGHIJKLMNOPQRSTUVWXYZ"
    return {
        "ada": tiny.write_model(folder / "ada", tiny.byte_tokenizer(), "qwen3", seed=1),
        "bea": tiny.write_model(
            folder / "bea", tiny.byte_tokenizer(merges=40, bos=True, pad_is_eos=True, chat=True), "llama", seed=2,
            end_tokens=("</s>", "<|end|>"),
        ),
        "cy": tiny.write_model(folder / "cy", tiny.letter_tokenizer(letters), "mistral", seed=3),
    }  # fmt: skip


def settings(models: dict[str, Path], data: Path, **changes: Any) -> Config:
    """A run of two steps on problems whose reward is the parity of the response's length: any model earns some.

    changes: dotted settings with __ in place of dots (algorithm__name="gspo").
    """
    problems = data / "problems.jsonl"
    if not problems.exists():
        rows = [{"prompt": f"{i}+{i % 7}=", "answer": str(i + i % 7)} for i in range(40)]
        problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (data / "parity.py").write_text("def reward(response, answer, row):\n    return len(response) % 2\n")
    plain = {
        "task": {"kind": "file", "name": str(problems), "reward": f"{data / 'parity.py'}:reward", "reward_workers": 1},
        "agents": {name: {"model": str(folder)} for name, folder in models.items()},
        "rollout": {
            "engine": "transformers", "prompts_per_step": 4, "samples_per_prompt": 4, "max_prompt_tokens": 48,
            "max_response_tokens": 12,
        },
        "training": {"minibatch_responses": 16, "lr": 1e-3, "token_budget": 512},
        "validation": {"every": 0},
        "run": {"steps": 2, "tensorboard": False},
    }  # fmt: skip
    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
    for override in overrides:
        key, _, value = override.partition("=")
        *path, last = key.split(".")
        section = plain
        for part in path:
            section = section.setdefault(part, {})
        section[last] = json.loads(value)
    return config_file.validate(plain)


def train(config: Config, folder: Path) -> list[dict[str, Any]]:
    """Runs it and returns the records of metrics.jsonl."""
    assert run(config, Place(folder)) == 0
    return read_metrics(folder)


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what depends on the clock."""

    def strip(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        clock = ("time", "peak_memory", "_per_second", "_seconds")
        return {key: strip(v) for key, v in value.items() if not key.endswith(clock)}

    return [strip(record) for record in records]


def weights(folder: Path, agent: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "agents" / agent / "model.safetensors")


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def collector(trainer, rewards):
    """What `trainer` collects answers with, without the output of a run."""
    silent = SimpleNamespace(phase=lambda text: None, note=lambda text: None)
    return Collector(trainer.agents, trainer._prompts, trainer.config, rewards, silent)


def first_learner(trainer, **training):
    """The learner of the first agent in the first step of `trainer`, before any update. training: other settings."""
    config = trainer.config
    config = config.model_copy(update={"training": config.training.model_copy(update=training)})
    with open_rewards(config.task) as rewards:
        pool = collector(trainer, rewards).collect(1, trainer.prepared.batch(1), Phases()).pool
    agent = trainer.agents[0]
    ratios = torch.ones(len(trainer.agents), len(trainer.agents), dtype=torch.float64)
    batch = assemble(
        pool, 0, agent.codec, trainer._prompts(agent, pool.problems), agent.context, ratios, config.algorithm, True
    )
    return Learner(agent, batch, config, lr=1e-3, rng=np.random.default_rng(0))
