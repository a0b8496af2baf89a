"""The training step of HACPO (Appendix E, Algorithm 1), and the loop around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
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
from hacpo_fast.rollouts.records import RolloutPool
from hacpo_fast.run.checkpoints import prune, write_whole
from hacpo_fast.run.output import RunOutput
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.profile import profiled
from hacpo_fast.run.seeds import Purpose, derive, rng
from hacpo_fast.run.signals import StopRequest
from hacpo_fast.step_record import agent_record, no_signal_share, sample_rollouts
from hacpo_fast.tasks import Problem, open_rewards
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
                    with self._profiling(step):
                        record = self.step(step)
                    self.output.step(record)
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
                "clip_history": {agent.name: agent.clip_history.state_dict() for agent in self.agents},
                "cross_bound": {agent.name: agent.cross_bound.state_dict() for agent in self.agents},
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
            agent.clip_history.load_state_dict(state["clip_history"][agent.name])
            agent.cross_bound.load_state_dict(state["cross_bound"][agent.name])

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

    def _profiling(self, step: int) -> AbstractContextManager[None]:
        if step not in self.config.run.profile_steps:
            return nullcontext()
        return profiled(self.folder / "profile", step, self.prepared.device)

    def step(self, step: int) -> dict[str, Any]:
        """Training step number `step` (from 1). Returns its record for the logs."""
        phases = Phases(self.prepared.device)
        problems = self.prepared.batch(step)
        pool, mismatch = self._collect(step, problems, phases)
        capability = self.capability.update(
            {agent.name: torch.from_numpy(pool.of(agent.index).reward) for agent in self.agents}
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
            "peak_memory": phases.peaks(),
            "prompts": len(problems),
            "no_signal_share": no_signal_share(pool),
            "agents": agents,
        }

    def validate(self, step: int) -> None:
        """Answers the held-out problems with every agent."""
        phases, settings, problems = Phases(self.prepared.device), self.config.validation, self.prepared.held_out
        scores = {}
        for agent in self.agents:
            self.output.phase(f"{agent.name} is validated")
            prompts = [self.prepared.held_out_tokens[agent.name][problem.id] for problem in problems]
            with phases("validate", agent.name):
                scores[agent.name] = validate(
                    agent.engine, agent.codec, problems, prompts, settings.sampling,
                    settings.max_response_tokens or agent.max_response_tokens, self.validation_rewards,
                    self.config.algorithm.advantage.reward_max,
                    derive(self.config.run.seed, Purpose.VALIDATION, step, agent.index),
                )  # fmt: skip
        updates = {agent.name: agent.updates for agent in self.agents}
        self.output.validation({"step": step, "validation": scores, "updates": updates, "time": phases.seconds()})

    def _collect(self, step: int, problems: Sequence[Problem], phases: Phases) -> tuple[RolloutPool, dict[str, float]]:
        """Every agent answers every prompt. Answers are verified while the next agent samples or scores.

        Returns:
            (the pool, and where log-probs were recomputed by agent: how far they were from the engine's).
        """
        rollouts, verifying = [], []
        for agent in self.agents:
            seed = derive(self.config.run.seed, Purpose.ROLLOUT, step, agent.index)
            self.output.phase(f"{agent.name} answers")
            with phases("rollout", agent.name):
                answers = agent.rollout(self._prompts(agent, problems), self.config.samples_per_prompt, seed)
            verifying.append(self.rewards.submit([(answer.text, problems[answer.prompt]) for answer in answers]))
            rollouts += answers
        pool = RolloutPool(problems, [agent.name for agent in self.agents], rollouts)
        mismatch: dict[str, float] = {}
        if self.config.scores_rollouts:
            with phases("recompute"):
                pool, mismatch = recompute(pool, self.agents, self._prompts, self.config)
        with phases("verify"):
            results = [result for handle in verifying for result in handle.result()]
        verified = [
            replace(rollout, reward=result.value, reward_error=result.error)
            for rollout, result in zip(pool.rollouts, results, strict=True)
        ]
        self._note_large_rewards(max((rollout.reward for rollout in verified), default=0.0))
        return replace(pool, rollouts=verified), mismatch

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
        draw = rng(config.run.seed, Purpose.MINIBATCH, step, agent.index)
        learner = Learner(agent, batch, config, agent.lr * factor, draw)
        learner.learn()
        return learner

    def _prompts(self, agent: Agent, problems: Sequence[Problem]) -> list[np.ndarray]:
        tokens = self.prepared.prompt_tokens[agent.name]
        return [tokens[problem.id] for problem in problems]
