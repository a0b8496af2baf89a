"""GSPO patched together from transformers, as people do it in a page of code: padded batches, logits, log_softmax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import DEVICE
from step_work import Cost, Recorded, Work, clock, in_process_reward
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

Sequences = list[tuple[Tensor, Tensor]]  # prompt and response of each


class Plain:
    """`step` samples from every agent with `generate` and makes its updates, one agent after another."""

    def __init__(self, work: Work, _: Path, recorded: Recorded | None = None, **changes: Any) -> None:
        self.prepared, self.recorded, self.micro_batch = work.prepared("gspo", **changes), recorded, work.micro_batch
        self.config, self.verify = self.prepared.config, in_process_reward(self.prepared)
        training = self.config.training
        self.models, self.tokenizers, self.optimizers = {}, {}, {}
        for card in self.prepared.cards:
            model = AutoModelForCausalLM.from_pretrained(card.settings.model, dtype=torch.float32).to(DEVICE)
            self.models[card.name] = model.eval()
            self.tokenizers[card.name] = AutoTokenizer.from_pretrained(card.settings.model)
            self.optimizers[card.name] = torch.optim.AdamW(
                model.parameters(), self.config.lr(card.name), training.betas, training.adam_eps,
                training.weight_decay, fused=True,
            )  # fmt: skip
        self.steps = 0

    def step(self) -> Cost:
        self.steps += 1
        start = clock()
        self.cost = Cost(seconds=Counter())
        for agent in self.models:
            with self._timed("rollout"):
                sequences, problems = self._sample(agent)
            with self._timed("verify"):
                advantages = self._advantages(agent, sequences, problems)
            with self._timed("learn"):
                self._learn(agent, sequences, advantages)
        self.cost.seconds["total"] = clock() - start
        return self.cost

    def gradients(self) -> dict[str, dict[str, Tensor]]:
        """See `step_ours.Ours.gradients`."""
        return {
            agent: {name: self.optimizers[agent].state[p]["exp_avg"] for name, p in model.named_parameters()}
            for agent, model in self.models.items()
        }

    def close(self) -> None: ...

    @torch.no_grad()
    def _sample(self, agent: str) -> tuple[Sequences, list[Any]]:
        problems, each = self.prepared.batch(self.steps), self.config.samples_per_prompt
        prompts = [torch.as_tensor(self.prepared.prompt_tokens[agent][problem.id]) for problem in problems]
        if self.recorded is not None:
            samples = self.recorded[self.steps, agent]
            answers = [torch.as_tensor(sample.token_ids) for group in samples for sample in group]
        else:
            answers = self._generate(agent, prompts, each)
        self.cost.generated += sum(map(len, answers))
        questions = [prompt for prompt in prompts for _ in range(each)]
        return list(zip(questions, answers, strict=True)), [problem for problem in problems for _ in range(each)]

    def _generate(self, agent: str, prompts: list[Tensor], each: int) -> list[Tensor]:
        model = self.models[agent]
        inputs = self.tokenizers[agent].pad({"input_ids": [p.tolist() for p in prompts]}, return_tensors="pt")
        output = model.generate(
            **inputs.to(DEVICE), do_sample=True, temperature=self.config.temperature(agent), top_p=1.0, top_k=0,
            num_return_sequences=each, max_new_tokens=self.config.max_response_tokens(agent),
        )[:, inputs["input_ids"].shape[1] :].cpu()  # fmt: skip
        ends = torch.isin(output, torch.as_tensor(model.generation_config.eos_token_id))
        lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, output.shape[1])
        return [row[:length] for row, length in zip(output, lengths, strict=True)]

    def _advantages(self, agent: str, sequences: Sequences, problems: list[Any]) -> Tensor:
        texts = self.tokenizers[agent].batch_decode([answer for _, answer in sequences], skip_special_tokens=True)
        rewards = [self.verify(text, problem.answer or "") for text, problem in zip(texts, problems, strict=True)]
        groups = torch.tensor(rewards).view(-1, self.config.samples_per_prompt)
        return ((groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()

    def _learn(self, agent: str, sequences: Sequences, advantages: Tensor) -> None:
        model, optimizer, algorithm = self.models[agent], self.optimizers[agent], self.config.algorithm
        size = self.config.training.minibatch_responses
        with torch.no_grad():
            old = torch.cat(
                [self._mean_logprobs(agent, sequences[i : i + self.micro_batch]) for i in self._starts(len(sequences))]
            )
        order = torch.from_numpy(np.random.default_rng(self.steps).permutation(len(sequences)))
        for rows in order.split(size):
            for part in rows.split(self.micro_batch):
                chosen = [sequences[i] for i in part]
                ratio = (self._mean_logprobs(agent, chosen, count=True) - old[part]).exp()
                clipped = ratio.clamp(1 - algorithm.own_clip_low, 1 + algorithm.own_clip_high)
                weight = advantages[part].to(DEVICE)
                (-torch.minimum(ratio * weight, clipped * weight).sum() / len(rows)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.training.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()

    def _starts(self, sequences: int) -> range:
        return range(0, sequences, self.micro_batch)

    def _mean_logprobs(self, agent: str, sequences: Sequences, count: bool = False) -> Tensor:
        """Mean log-prob of each response, [N]."""
        prompts, answers = zip(*sequences, strict=True)
        ids = torch.cat([_padded(prompts, "left"), _padded(answers, "right")], 1).to(DEVICE)
        known = [[torch.ones_like(part) for part in parts] for parts in (prompts, answers)]
        mask = torch.cat([_padded(known[0], "left"), _padded(known[1], "right")], 1).to(DEVICE)
        longest = max(map(len, answers))
        logits = self.models[agent](ids, attention_mask=mask, logits_to_keep=longest + 1, use_cache=False).logits[
            :, :-1
        ]
        logprobs = (logits / self.config.temperature(agent)).log_softmax(-1)
        logprobs = logprobs.gather(-1, ids[:, -longest:, None])[..., 0]
        if count:
            self.cost.trained += int(mask.sum())
            self.cost.computed += mask.numel()
        scored = mask[:, -longest:]
        return (logprobs * scored).sum(1) / scored.sum(1)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = clock()
        yield
        self.cost.seconds[phase] += clock() - start


def _padded(sequences: Any, side: str) -> Tensor:
    return pad_sequence(list(sequences), batch_first=True, padding_side=side)
