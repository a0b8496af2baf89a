"""hacpo_fast as a contestant: its own trainer, step by step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from step_work import Cost, Recorded, Work, clock
from torch import Tensor

from hacpo_fast.collector import Collector
from hacpo_fast.rollouts.engine import Sampling
from hacpo_fast.run import phases
from hacpo_fast.tasks import open_rewards
from hacpo_fast.trainer import Trainer


class _Engine:
    """Counts what an engine generates, or answers with what was recorded."""

    def __init__(self, engine: Any, recorded: list[list[list]] | None) -> None:
        self.engine, self.recorded, self.tokens = engine, recorded, 0

    def generate(self, prompts, sampling, seed):
        answers = self.recorded.pop(0) if self.recorded is not None else self.engine.generate(prompts, sampling, seed)
        self.tokens += sum(len(sample.token_ids) for group in answers for sample in group)
        return answers

    def sync(self) -> None:
        self.engine.sync()

    def close(self) -> None:
        self.engine.close()


class _Counting(Trainer):
    """Trained and computed tokens of the step are counted in `cost`."""

    def _learn(self, *arguments: Any):
        learner = super()._learn(*arguments)
        batch = learner.batch
        rows = batch.scorable.nonzero()[0]
        self.cost.trained += sum(len(part) for row in rows for part in batch.sequence(row))
        self.cost.computed += learner.passes.trained_tokens
        return learner


class Ours:
    """A run of hacpo_fast on `work`; `step` is one training step. recorded: answers in place of its engines'."""

    def __init__(
        self, work: Work, folder: Path, algorithm: str, recorded: Recorded | None = None, **changes: Any
    ) -> None:
        self.prepared = work.prepared(algorithm, **changes)
        self.trainer = _Counting(self.prepared, folder)
        for agent in self.trainer.agents:
            answers = None if recorded is None else [recorded[s, agent.name] for s in range(1, self.prepared.steps + 1)]
            agent.engine = _Engine(agent.engine, answers)
        trainer, config = self.trainer, self.prepared.config
        self.rewards = open_rewards(config.task)
        trainer.output = SimpleNamespace(phase=_nothing, rollouts=_nothing, note=_nothing)
        trainer.collector = Collector(trainer.agents, trainer._prompts, config, self.rewards, trainer.output)
        self.steps = 0

    def step(self) -> Cost:
        self.steps += 1
        self.trainer.cost = cost = Cost()
        for agent in self.trainer.agents:
            agent.engine.tokens = 0
        with mock.patch.object(phases, "time", SimpleNamespace(perf_counter=clock)):
            record = self.trainer.step(self.steps)
        cost.generated = sum(agent.engine.tokens for agent in self.trainer.agents)
        cost.seconds = record["time"]
        return cost

    def gradients(self) -> dict[str, dict[str, Tensor]]:
        """AdamW's first moments by agent and parameter: after one update a tenth of the gradient."""
        states = {agent.name: agent.optimizer.state_dict() for agent in self.trainer.agents}
        return {
            name: {key.removeprefix("exp_avg."): moment for key, moment in state.items() if key.startswith("exp_avg.")}
            for name, state in states.items()
        }

    def close(self) -> None:
        self.rewards.close()
        self.trainer.close()


def record(work: Work, folder: Path, steps: int) -> Recorded:
    """What the agents of `work`, untrained, answer in the first `steps` steps."""
    prepared = work.prepared()
    trainer = Trainer(prepared, folder)
    config, recorded = prepared.config, {}
    for step in range(1, prepared.steps + 1):
        problems = prepared.batch(step)
        for agent in trainer.agents:
            if step > steps:
                recorded[step, agent.name] = []
                continue
            sampling = Sampling(config.samples_per_prompt, agent.temperature, agent.max_response_tokens)
            prompts = [prepared.prompt_tokens[agent.name][problem.id] for problem in problems]
            recorded[step, agent.name] = agent.engine.generate(prompts, sampling, seed=step)
    trainer.close()
    return recorded


def _nothing(*_: Any, **__: Any) -> None: ...
