"""TRL's GRPOTrainer with sequence-level ratios (GSPO) as a contestant: one after another for each agent.

TRL trains one model on its own answers, so two agents are two trainers in turn. Its loop runs in a thread that stands
still between steps: nothing but steps is timed, and every step is as long as TRL takes from one to the next.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peers import DEVICE
from step_work import Cost, Recorded, Work, clock, in_process_reward, problems_of
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

MISSING = None if importlib.util.find_spec("trl") else "TRL is not installed: pip install 'hacpo_fast[bench]'"


def version() -> str:
    return importlib.metadata.version("trl")


class Trl:
    """`step` is one generation batch of each agent and all updates on it."""

    def __init__(self, work: Work, folder: Path, recorded: Recorded | None = None, **changes: Any) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental, and we know
        prepared = work.prepared("gspo", **changes)
        self.runs = {
            card.name: _Run(prepared, card, folder / card.name, work.micro_batch, recorded) for card in prepared.cards
        }

    def step(self) -> Cost:
        start = clock()
        total, seconds = Cost(), Counter()
        for run in self.runs.values():
            cost = run.step()
            total.generated += cost.generated
            total.trained += cost.trained
            total.computed += cost.computed
            seconds.update(cost.seconds)
        total.seconds = {**seconds, "total": clock() - start}
        total.seconds["learn"] = total.seconds["total"] - sum(seconds.values())
        return total

    def gradients(self) -> dict[str, dict[str, Tensor]]:
        """See `step_ours.Ours.gradients`."""
        return {name: run.gradients() for name, run in self.runs.items()}

    def close(self) -> None:
        for run in self.runs.values():
            run.close()


class _Run:
    """One agent's trainer, which stops after every step until it is told to go on."""

    def __init__(self, prepared: Any, card: Any, folder: Path, micro_batch: int, recorded: Recorded | None) -> None:
        from datasets import Dataset
        from trl import GRPOConfig

        config, verify = prepared.config, in_process_reward(prepared)
        responses = config.rollout.prompts_per_step * config.samples_per_prompt
        self.updates = -(-responses // config.training.minibatch_responses)
        accumulation = max(1, config.training.minibatch_responses // micro_batch)
        algorithm, training = config.algorithm, config.training
        settings = GRPOConfig(
            output_dir=str(folder), use_cpu=DEVICE == "cpu", bf16=False, report_to="none", logging_strategy="no",
            save_strategy="no", disable_tqdm=True, dataloader_pin_memory=DEVICE != "cpu", shuffle_dataset=False,
            per_device_train_batch_size=config.training.minibatch_responses // accumulation,
            gradient_accumulation_steps=accumulation, steps_per_generation=accumulation * self.updates,
            max_steps=self.updates * prepared.steps, gradient_checkpointing=False,
            num_generations=config.samples_per_prompt, max_completion_length=config.max_response_tokens(card.name),
            temperature=config.temperature(card.name), top_p=1.0, top_k=0,
            importance_sampling_level="sequence", loss_type="grpo", beta=0.0, scale_rewards="group",
            epsilon=algorithm.own_clip_low, epsilon_high=algorithm.own_clip_high,
            learning_rate=config.lr(card.name), lr_scheduler_type="constant", adam_beta1=training.betas[0],
            adam_beta2=training.betas[1], adam_epsilon=training.adam_eps, weight_decay=training.weight_decay,
            max_grad_norm=training.max_grad_norm,
        )  # fmt: skip
        self.trainer = _trainer_class()(
            model=AutoModelForCausalLM.from_pretrained(card.settings.model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(card.settings.model),
            args=settings,
            train_dataset=Dataset.from_list(list(problems_of(prepared))),
            reward_funcs=lambda completions, answer, **_: [
                verify(*pair) for pair in zip(completions, answer, strict=True)
            ],
            rollout_func=_replay(prepared, card.name, recorded) if recorded is not None else None,
            callbacks=[_Pauses(self)],
        )
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.cost = Cost()
        self.go, self.stopped, self.closing, self.error = threading.Semaphore(0), threading.Semaphore(0), False, None
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()
        self._wait()

    def step(self) -> Cost:
        self.trainer.cost = cost = Cost(seconds=Counter())
        self.go.release()
        self._wait()
        return cost

    def gradients(self) -> dict[str, Tensor]:
        state = self.trainer.optimizer.state
        return {name: state[p]["exp_avg"] for name, p in self.trainer.model.named_parameters()}

    def close(self) -> None:
        self.closing = True
        self.go.release()
        self.thread.join()

    def pause(self) -> None:
        self.stopped.release()
        self.go.acquire()

    def _wait(self) -> None:
        self.stopped.acquire()
        if self.error is not None:
            raise self.error

    def _train(self) -> None:
        try:
            self.trainer.train()
        except BaseException as error:  # for whoever waits
            self.error = error
        self.stopped.release()


class _Pauses(TrainerCallback):
    def __init__(self, run: _Run) -> None:
        self.run = run

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.run.pause()

    def on_step_end(self, _, state, control, **__: Any) -> None:
        if state.global_step % self.run.updates == 0:
            self.run.pause()
        control.should_training_stop |= self.run.closing


def _trainer_class() -> type:
    from trl import GRPOTrainer

    class Counted(GRPOTrainer):
        """TRL's trainer, with tokens counted and phases timed in `cost`."""

        def _generate_single_turn(self, *arguments: Any, **options: Any):
            with self._timed("rollout"):
                return super()._generate_single_turn(*arguments, **options)

        def _generate(self, *arguments: Any, **options: Any):
            result = super()._generate(*arguments, **options)
            self.cost.generated += sum(map(len, result[1]))
            return result

        def _calculate_rewards(self, *arguments: Any, **options: Any):
            with self._timed("verify"):
                return super()._calculate_rewards(*arguments, **options)

        def _compute_loss(self, model: Any, inputs: dict[str, Any]):
            masks = inputs["prompt_mask"], inputs["completion_mask"]
            self.cost.trained += sum(int(mask.sum()) for mask in masks)
            self.cost.computed += sum(mask.numel() for mask in masks)
            return super()._compute_loss(model, inputs)

        @contextmanager
        def _timed(self, phase: str) -> Iterator[None]:
            start = clock()
            yield
            self.cost.seconds[phase] += clock() - start

    return Counted


def _replay(prepared: Any, agent: str, recorded: Recorded) -> Callable[[list[str], Any], dict[str, list]]:
    """A rollout_func that answers step by step with what was recorded."""
    steps = iter(range(1, prepared.steps + 1))

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list]:
        step = next(steps)
        problems = prepared.batch(step)
        samples = [sample for group in recorded[step, agent] for sample in group]
        each = len(samples) // len(problems)
        assert prompts == [problem.prompt for problem in problems for _ in range(each)], "TRL asks something else"
        tokens = [prepared.prompt_tokens[agent][problem.id].tolist() for problem in problems]
        return {
            "prompt_ids": [ids for ids in tokens for _ in range(each)],
            "completion_ids": [sample.token_ids.tolist() for sample in samples],
            "logprobs": [sample.logprobs.tolist() for sample in samples],
        }

    return rollout
