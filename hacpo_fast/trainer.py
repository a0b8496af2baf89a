"""The training step of HACPO (Appendix E, Algorithm 1), and the loop around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.capability import CapabilityTracker, capability_ratios
from hacpo_fast.collector import Collector
from hacpo_fast.engines import open_engines
from hacpo_fast.errors import UserError
from hacpo_fast.learner import Learner
from hacpo_fast.learner_batch import assemble
from hacpo_fast.non_finite import TooManySkipped
from hacpo_fast.policy.schedule import lr_factor
from hacpo_fast.preparation import Preparation
from hacpo_fast.replay_file import save_replay
from hacpo_fast.reward_watch import RewardWatch
from hacpo_fast.rollouts.records import RolloutPool
from hacpo_fast.run import checkpoints
from hacpo_fast.run.checkpoints import STATE_FILE
from hacpo_fast.run.output import RunOutput
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.profile import profiled
from hacpo_fast.run.seeds import Purpose, derive, rng
from hacpo_fast.run.signals import Abandoned, StopRequest
from hacpo_fast.run.whole import write_folder
from hacpo_fast.step_record import agent_record, no_signal_share, sample_rollouts
from hacpo_fast.tasks import Problem, open_rewards
from hacpo_fast.validation import validate

FORMAT = 1
"""Of trainer.json in a checkpoint."""


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
        self.validated: dict[str, Any] | None = None  # scores after the last of these steps, if they were taken
        self.positions: dict[str, int] = {}  # of the files of the output then
        self.saved = checkpoint  # the checkpoint of this very state
        self.stop = StopRequest()
        if checkpoint:
            self._load_state(checkpoint)

    @property
    def notes(self) -> list[str]:
        """What computes the agents and their answers, for the user."""
        agents = [note for agent in self.agents for note in (agent.summary, *agent.notes)]
        return [*agents, *self.engines.notes]

    def close(self) -> None:
        """Frees the engines; the agents keep their weights."""
        self.engines.close()

    def fit(self, output: RunOutput) -> bool:
        """Runs all steps and saves the agents. False: stopped on request, with all that is needed to go on saved."""
        self.output = output
        with ExitStack() as stack:
            rewards = stack.enter_context(open_rewards(self.config.task))
            self.collector = Collector(self.agents, self._prompts, self.config, rewards, output)
            task = self.config.validation.task
            self.validation_rewards = stack.enter_context(open_rewards(task)) if task else rewards
            self.validation_watch = RewardWatch((task or self.config.task).reward_failure, output.note)
            stack.enter_context(self.stop.listening(output.note))
            return self._run_steps()

    def _run_steps(self) -> bool:
        run, steps = self.config.run, self.prepared.steps
        try:
            self._validate_if_due()
            if self.steps_done and self.saved is None:  # its validation had been interrupted
                self.save_checkpoint()
            for step in range(self.steps_done + 1, steps + 1):
                with self._saving_on_failure(step):
                    with self._profiling(step):
                        record = self.step(step)
                    self.output.step(record)
                    self.steps_done, self.validated, self.saved = step, None, None
                    self._validate_if_due()
                if self.stop.requested and step < steps:
                    return self._stopped()
                if (run.save_every and (step % run.save_every == 0 or step == steps)) or self._is_best():
                    self.save_checkpoint()
        except Abandoned:
            return self._stopped()
        write_folder(self.folder / "agents", self._save_agents)
        return True

    def _validate_if_due(self) -> None:
        """Before the first step, every so many steps and after the last; not twice, though the run was stopped."""
        step, every = self.steps_done, self.config.validation.every
        if every and self.validated is None and (step % every == 0 or step == self.prepared.steps):
            with self.stop.abandonable():
                record = self.validate(step)
            self.output.validation(record)
            self.validated, self.saved = record["validation"], None

    def _is_best(self) -> bool:
        """Whether no checkpoint has as high a score as the agents have now. The start does not compete."""
        metric = self.config.run.keep_best
        value = checkpoints.score(self.validated, metric) if metric else None
        if value is None:
            return False
        best = checkpoints.best(self.folder / checkpoints.FOLDER, metric)
        return best is None or value > best[1]

    def _stopped(self) -> bool:
        if self.steps_done:
            where = f"all that is needed to go on is in {self.saved or self.save_checkpoint()}"
        else:
            where = "nothing was learnt yet"
        self.output.note(f"stopped after step {self.steps_done} of {self.prepared.steps}; {where}")
        return False

    def save_checkpoint(self) -> Path:
        """Writes all that later steps depend on. Random streams are functions of seed and step: they have no state."""

        def fill(folder: Path) -> None:
            for agent in self.agents:
                agent.save_training(folder / agent.name)
            state = {
                "format": FORMAT,
                "steps_done": self.steps_done,
                "validation": self.validated,
                "capability": self.capability.state_dict(),
                "agents": {agent.name: agent.progress() for agent in self.agents},
                "data": self.prepared.fingerprint,
                "positions": self.output.positions(),
            }
            (folder / STATE_FILE).write_text(json.dumps(state, indent=1))
            (folder / "config.yaml").write_text(yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False))

        parent = self.folder / checkpoints.FOLDER
        self.saved = write_folder(parent / f"step-{self.steps_done}", fill)
        checkpoints.settle(parent, self.config.run.keep_checkpoints, self.config.run.keep_best)
        return self.saved

    def _load_state(self, checkpoint: Path) -> None:
        state = json.loads((checkpoint / STATE_FILE).read_text())
        if state.get("format") != FORMAT:
            raise UserError(f"run.resume: {checkpoint} was written by another version of hacpo_fast; start anew")
        if state["data"] != self.prepared.fingerprint:
            raise UserError(
                f"run.resume: the problems are not those that the run of {checkpoint} was trained on; it cannot go on "
                "as if nothing had been. Put the old ones back, or start anew from the agents in the checkpoint"
            )
        if checkpoint.name != f"step-{state['steps_done']}":
            raise UserError(f"run.resume: {checkpoint} is that of step {state['steps_done']}; give it its name back")
        self.steps_done, self.validated = state["steps_done"], state["validation"]
        self.positions = state["positions"]
        self.capability.load_state_dict(state["capability"])
        for agent in self.agents:
            agent.set_progress(state["agents"][agent.name])

    def _save_agents(self, folder: Path) -> None:
        for agent in self.agents:
            agent.save(folder / agent.name)

    @contextmanager
    def _saving_on_failure(self, step: int) -> Iterator[None]:
        """Should what is inside fail, what was learnt is saved: as a checkpoint, or the agents alone within a step."""
        try:
            yield
        except Exception:
            whole = self.steps_done == step  # it was the validation that failed
            if whole or any(agent.updates for agent in self.agents):
                place = self.folder / checkpoints.FOLDER / f"failed-in-step-{step}"
                try:
                    saved = self.save_checkpoint() if whole else write_folder(place, self._save_agents)
                    self.output.note(f"step {step} failed; the agents as they are now are in {saved}")
                except Exception as error:  # a full disk, maybe; the first failure is the one to report
                    self.output.note(f"step {step} failed, and the agents could not be saved: {error}")
            raise

    def _profiling(self, step: int) -> AbstractContextManager[None]:
        if step not in self.config.run.profile_steps:
            return nullcontext()
        return profiled(self.folder / "profile", step, self.prepared.device)

    def step(self, step: int) -> dict[str, Any]:
        """Training step number `step` (from 1). Returns its record for the logs."""
        phases = Phases(self.prepared.device)
        problems = self.prepared.batch(step)
        with self.stop.abandonable():  # so far the step has changed nothing
            pool, mismatch, reward_p95_seconds = self.collector.collect(step, problems, phases)
        capability = self.capability.update(
            {agent.name: torch.from_numpy(pool.of(agent.index).verified_reward) for agent in self.agents}
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
            "reward_p95_seconds": reward_p95_seconds,
            "prompts": len(problems),
            "no_signal_share": no_signal_share(pool),
            "agents": agents,
        }

    def validate(self, step: int) -> dict[str, Any]:
        """Answers the held-out problems with every agent. Returns the record for the logs."""
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
                    partial(self.validation_watch.failures, f"validation at step {step}", agent.name),
                )  # fmt: skip
        updates = {agent.name: agent.updates for agent in self.agents}
        return {"step": step, "validation": scores, "updates": updates, "time": phases.seconds()}

    def _learn(self, step: int, agent: Agent, pool: RolloutPool, ratios: Tensor) -> Learner:
        config = self.config
        batch = assemble(
            pool, agent.index, agent.codec, self._prompts(agent, pool.problems), agent.context, ratios,
            config.algorithm, config.rollout.score_eos,
        )  # fmt: skip
        training = config.training
        factor = lr_factor(step - 1, self.prepared.steps, self.prepared.warmup_steps, training.schedule)
        draw = rng(config.run.seed, Purpose.MINIBATCH, step, agent.index)
        learner = Learner(agent, batch, config, agent.lr * factor, draw)
        try:
            learner.learn()
        except TooManySkipped as skipped:
            saved = save_replay(self.folder / f"replay-step-{step}-{agent.name}", step, skipped)
            raise UserError(f"{skipped}. To see which response it is: python -m hacpo_fast.replay {saved}") from None
        return learner

    def _prompts(self, agent: Agent, problems: Sequence[Problem]) -> list[np.ndarray]:
        tokens = self.prepared.prompt_tokens[agent.name]
        return [tokens[problem.id] for problem in problems]
