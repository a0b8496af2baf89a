"""From hidden states to loss and gradients in three products per token instead of four, chunk by chunk.

linear_logprob has to compute every logit again in backward, because it does not know the gradient its results will get.
Here the loss is known as soon as a response's last token is: chunks hold whole responses, their exponentials are kept
until the policy loss has been computed, and then turn into the gradients that two more products need.

A response longer than a chunk goes through linear_logprob's own forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Head, Needs, Objective, Responses, RowGradients
from .dispatch import implementation
from .products import accumulate, multiply
from .rows import live_rows


class Part(NamedTuple):
    """Whole sequences that are worked on together."""

    sequences: slice
    tokens: slice

    @property
    def rows(self) -> int:
        return self.tokens.stop - self.tokens.start


def split(offsets: list[int], chunk_tokens: int) -> Iterator[Part]:
    """Cuts N sequences at `offsets` [N + 1] into parts of at most chunk_tokens, in order; longer ones stay alone."""
    first, sequences = 0, len(offsets) - 1
    while first < sequences:
        last = first + 1
        while last < sequences and offsets[last + 1] - offsets[first] <= chunk_tokens:
            last += 1
        yield Part(slice(first, last), slice(offsets[first], offsets[last]))
        first = last


def run(
    head: Head,
    responses: Responses,
    objective: Objective,
    offsets: list[int],
    chunk_tokens: int | None,
    needs: Needs,
    backend: str,
) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None, Tensor | None], list[Tensor]]:
    """(loss [], token_logprobs [T], gradients of hidden, weight and bias, seven statistics [N]).

    offsets: cu_seqlens on the host.
    """
    projection, policy = implementation(backend, "linear_logprob"), implementation(backend, "policy_loss")
    kept_exponentials = implementation(backend, "linear_policy_loss")
    tokens, any_gradient = head.hidden.shape[0], any(needs)
    # Without gradients there is nothing to keep exponentials for, and all tokens are one part.
    limit = max(tokens, 1)
    if any_gradient:
        limit = chunk_tokens or kept_exponentials.chunk_rows(head.hidden, head.weight)
    parts = list(split(offsets, limit))
    largest = max((part.rows for part in parts if part.rows <= limit), default=0)
    chunk = kept_exponentials.Chunk(head, largest) if any_gradient and largest > 0 else None
    gradients = Gradients(head, needs, len(parts))

    token_logprobs = head.hidden.new_empty(tokens, dtype=head.dtype)
    losses, stats = [], []
    for part in parts:
        kept = any_gradient and 0 < part.rows <= limit
        if kept:
            token_logprobs[part.tokens] = chunk.forward(part.tokens)
        else:
            logprob, logsumexp, _ = projection.forward(head.take(part.tokens), False)
            token_logprobs[part.tokens] = logprob
        loss, coefficient, *part_stats = policy.forward(
            token_logprobs[part.tokens], responses.take(part.sequences, part.tokens), objective
        )
        losses.append(loss)
        stats.append(part_stats)
        if not any_gradient or part.rows == 0:
            continue
        if kept:
            gradients.add_chunk(chunk, part.tokens, coefficient)
        else:
            rows = RowGradients(coefficient, None, logsumexp, None)
            gradients.add(part.tokens, projection.backward(head.take(part.tokens), rows, needs, grad_dtype=head.dtype))
    if not parts:  # no sequences
        loss, _, *part_stats = policy.forward(token_logprobs, responses, objective)
        losses, stats = [loss], [part_stats]
    loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
    return loss, token_logprobs, gradients.finish(), [torch.cat(column) for column in zip(*stats, strict=True)]


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which a gradient waits for the upstream gradient: float16 may hold it only after a loss scale's factor."""
    return torch.float32 if dtype == torch.float16 else dtype


class Gradients:
    """Sums over the parts, in the dtype of the computation; hidden rows are written once."""

    def __init__(self, head: Head, needs: Needs, parts: int) -> None:
        self.head, self.dtype = head, head.dtype
        hidden, weight, bias = head.hidden, head.weight, head.bias
        self.hidden = hidden.new_zeros(hidden.shape, dtype=result_dtype(hidden.dtype)) if needs.hidden else None
        # With one part the weight's gradient is rounded slice by slice, and a float32 copy of the whole never exists.
        weight_dtype = result_dtype(weight.dtype) if parts == 1 else self.dtype
        self.weight = weight.new_empty(weight.shape, dtype=weight_dtype) if needs.weight else None
        self.weight_started = False
        self.bias = bias.new_zeros(bias.shape, dtype=self.dtype) if needs.bias else None

    def add(self, rows_of: slice, grads: tuple[Tensor | None, Tensor | None, Tensor | None]) -> None:
        """Gradients of one part from elsewhere: hidden [rows, H], weight [V, H], bias [V]."""
        if self.hidden is not None:
            self.hidden[rows_of] = grads[0]
        if self.weight is not None:
            self.weight.add_(grads[1]) if self.weight_started else self.weight.copy_(grads[1])
            self.weight_started = True
        if self.bias is not None:
            self.bias += grads[2]

    def add_chunk(self, chunk, rows_of: slice, coefficient: Tensor) -> None:
        """Gradients of a chunk whose exponentials are kept; coefficient [rows] is that of its logprobs."""
        live = live_rows(coefficient)
        if live is not None and live.numel() == 0:
            return
        chunk.set_gradient(coefficient)
        hidden = chunk.operands(live)
        grad_hidden = hidden.new_empty(hidden.shape, dtype=self.dtype) if self.hidden is not None else None
        spare = None
        for part, columns_of in enumerate(chunk.slices):
            grad = chunk.gradient(part, live)
            if grad_hidden is not None:
                accumulate(grad_hidden, grad, chunk.weight_slice(part), first=part == 0)
            if self.weight is not None:
                target = self.weight[columns_of]
                if chunk.rescale is None and target.dtype == self.dtype:
                    accumulate(target, grad.T, hidden, first=not self.weight_started)
                else:
                    if spare is None:
                        spare = hidden.new_empty(target.shape, dtype=self.dtype)
                    product = multiply(grad.T, hidden, spare[: target.shape[0]])
                    if chunk.rescale is not None:
                        product.mul_(chunk.rescale)
                    target.add_(product) if self.weight_started else target.copy_(product)
            if self.bias is not None:
                total = grad.sum(0, dtype=self.dtype)
                self.bias[columns_of] += total if chunk.rescale is None else total * chunk.rescale
        self.weight_started = True
        if grad_hidden is not None:
            if chunk.rescale is not None:
                grad_hidden.mul_(chunk.rescale)
            if live is None:
                self.hidden[rows_of] = grad_hidden
            else:
                self.hidden[rows_of].index_copy_(0, live, grad_hidden.to(self.hidden.dtype))

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of hidden, weight and bias as they wait for backward."""
        if self.weight is not None:
            if not self.weight_started:
                self.weight.zero_()
            self.weight = self.weight.to(result_dtype(self.head.weight.dtype))
        if self.bias is not None:
            self.bias = self.bias.to(result_dtype(self.head.bias.dtype))
        return self.hidden, self.weight, self.bias
