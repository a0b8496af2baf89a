"""Batched sampling with the policy's own transformers model: no second copy of the weights, no other library."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hacpo_fast.rollouts.engine import Sample, Sampling


class TransformersEngine:
    """Samples from `model` itself, so that an optimiser step is in the engine at once.

    A prompt is computed once for all its samples; sequences that have ended leave the batch.
    """

    def __init__(self, model: PreTrainedModel, end_ids: Sequence[int], batch_sequences: int):
        self.model = model
        self.batch_sequences = batch_sequences
        self.end_ids = torch.tensor(sorted(end_ids), device=model.device)
        # transformers 5.24 calls "cache" what it called "past_key_values" before.
        known = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"

    def sync(self) -> None:
        """Nothing to do: the weights are the policy's."""

    def close(self) -> None:
        """Nothing to do: everything is the policy's."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seed: int) -> list[list[Sample]]:
        """See `Engine.generate`."""
        generator = torch.Generator(self.model.device).manual_seed(seed)
        answers: list[list[Sample]] = [[] for _ in prompts]
        # Prompts of like length together: less padding. A stable sort keeps the order a function of the prompts alone.
        order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
        per_batch = max(1, self.batch_sequences // sampling.samples)
        was_training = self.model.training
        self.model.eval()
        try:
            for start in range(0, len(order), per_batch):
                chosen = order[start : start + per_batch]
                samples = self._sample_batch([prompts[i] for i in chosen], sampling, generator)
                for place, i in enumerate(chosen):
                    answers[i] = samples[place * sampling.samples : (place + 1) * sampling.samples]
        finally:
            self.model.train(was_training)
        return answers

    def _sample_batch(self, prompts: list[np.ndarray], sampling: Sampling, generator: torch.Generator) -> list[Sample]:
        device, n = self.model.device, sampling.samples
        input_ids, mask = _left_padded(prompts, device)
        cache = DynamicCache(config=self.model.config)
        position = mask.cumsum(-1).sub_(1).clamp_(min=0)
        logits = self._next_logits(input_ids, mask, position, cache)
        if n > 1:
            cache.batch_repeat_interleave(n)
            logits, mask = logits.repeat_interleave(n, 0), mask.repeat_interleave(n, 0)
            position = position.repeat_interleave(n, 0)
        position = position[:, -1:] + 1

        sequences = len(prompts) * n
        tokens = torch.zeros(sequences, sampling.max_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(sequences, sampling.max_tokens, device=device)
        length = torch.full((sequences,), sampling.max_tokens, device=device)
        ended = torch.zeros(sequences, dtype=torch.bool, device=device)
        rows = torch.arange(sequences, device=device)  # of the sequences that are still in the batch
        for t in range(sampling.max_tokens):
            chosen, logprob = _choose(logits, sampling, generator)
            tokens[rows, t], logprobs[rows, t] = chosen, logprob
            stops = torch.isin(chosen, self.end_ids)
            length[rows[stops]], ended[rows[stops]] = t + 1, True
            if t + 1 == sampling.max_tokens:
                break
            if stops.any():
                going = (~stops).nonzero().flatten()
                if len(going) == 0:
                    break
                rows, chosen, mask, position = rows[going], chosen[going], mask[going], position[going]
                cache.batch_select_indices(going)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
            logits = self._next_logits(chosen[:, None], mask, position, cache)
            position = position + 1
        tokens, logprobs = tokens.cpu().numpy(), logprobs.cpu().numpy()
        return [
            Sample(tokens[i, :end].copy(), logprobs[i, :end].copy(), stop)
            for i, (end, stop) in enumerate(zip(length.tolist(), ended.tolist(), strict=True))
        ]

    def _next_logits(self, input_ids: Tensor, mask: Tensor, position: Tensor, cache: DynamicCache) -> Tensor:
        output = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        return output.logits[:, -1].float()


def _left_padded(prompts: list[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    input_ids = np.zeros((len(prompts), longest), dtype=np.int64)  # what stands under the mask does not matter
    mask = np.zeros((len(prompts), longest), dtype=np.int64)
    for i, prompt in enumerate(prompts):
        input_ids[i, longest - len(prompt) :] = prompt
        mask[i, longest - len(prompt) :] = 1
    return torch.from_numpy(input_ids).to(device), torch.from_numpy(mask).to(device)


def _choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The next token of each sequence [B] and its log-prob [B] under the unfiltered distribution."""
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    logprobs = logits.log_softmax(-1)
    if sampling.temperature == 0:
        chosen = logprobs.argmax(-1)
    else:
        kept = _filtered(logprobs, sampling.top_p, sampling.top_k)
        chosen = torch.multinomial(kept.exp(), 1, generator=generator)[:, 0]
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]


def _filtered(logprobs: Tensor, top_p: float, top_k: int) -> Tensor:
    if top_k:
        kth = logprobs.topk(min(top_k, logprobs.shape[-1]), -1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < kth, -torch.inf)
    if top_p < 1:
        ordered, places = logprobs.softmax(-1).sort(-1, descending=True)
        surplus = ordered.cumsum(-1) - ordered >= top_p  # the token that crosses top_p stays
        logprobs = logprobs.masked_fill(surplus.gather(-1, places.argsort(-1)), -torch.inf)
    return logprobs
