"""The tiles of linear_policy_loss in plain torch: exponentials of a chunk's logits, kept until its loss is known."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import Head
from ..blocks import even_split, slices
from ..dispatch import compute_dtype
from ..rows import take
from .linear_logprob import CPU_TILE
from .tiles import logits_into, target_columns, token_temperature, vocab_slice

# Exponentials that are kept at once, in the dtype of the computation.
KEPT_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
MOST_ROWS = 8192


def chunk_rows(hidden: Tensor, weight: Tensor) -> int:
    """Tokens of a chunk unless the caller says otherwise."""
    size = compute_dtype(hidden, weight).itemsize
    kept = KEPT_BYTES.get(hidden.device.type, KEPT_BYTES["cpu"])
    return max(1, min(MOST_ROWS, kept // (size * weight.shape[0])))


class Chunk:
    """exp(logits - maximum) of one chunk of tokens after another, as one tile per slice of the vocabulary.

    The buffers are made for chunks of up to `rows` tokens and used again for the next chunk.
    """

    def __init__(self, head: Head, rows: int) -> None:
        self.head, self.dtype = head, head.dtype
        vocab = head.weight.shape[0]
        columns = even_split(vocab, max(CPU_TILE.bytes // (self.dtype.itemsize * rows), 1))
        self.slices = list(slices(vocab, columns))
        self.buffers = [head.hidden.new_empty(rows * (of.stop - of.start), dtype=self.dtype) for of in self.slices]
        self.rescale = None

    def operands(self, live: Tensor | None) -> Tensor:
        """Hidden states of the chunk's rows with a gradient, as factors of the products."""
        return self.rows_hidden if live is None else take(self.rows_hidden, live)

    def weight_slice(self, part: int) -> Tensor:
        return vocab_slice(self.head, self.slices[part])[0]

    def forward(self, rows_of: slice) -> Tensor:
        """Keep the exponentials of these tokens; their logprob [rows]."""
        head = self.head
        self.rows_hidden = head.hidden[rows_of].to(self.dtype)
        self.rows_targets, self.rows_temperature = head.targets[rows_of].long(), token_temperature(head, rows_of)
        tokens = self.rows_hidden.shape[0]
        maximum = self.rows_hidden.new_empty(len(self.slices), tokens)
        total = torch.empty_like(maximum)
        self.target_logit = self.rows_hidden.new_full((tokens,), float("nan"))
        for part, columns_of in enumerate(self.slices):
            weight_slice, bias_slice = vocab_slice(head, columns_of)
            tile = self._tile(part)
            logits_into(tile, self.rows_hidden, weight_slice, bias_slice, self.rows_temperature, head.softcap)
            local, inside = target_columns(self.rows_targets, columns_of)
            self.target_logit = torch.where(inside, tile.gather(1, local).squeeze(1), self.target_logit)
            torch.amax(tile, 1, out=maximum[part])
            maximum[part].clamp_(min=torch.finfo(self.dtype).min)
            torch.sum(tile.sub_(maximum[part, :, None]).exp_(), 1, out=total[part])
        self.logsumexp = torch.logsumexp(total.log_().add_(maximum), 0)
        self.factor = maximum.sub_(self.logsumexp)  # log of what turns an exponential into a probability
        self.logprob = self.target_logit - self.logsumexp
        return self.logprob

    def set_gradient(self, grad_logprob: Tensor) -> None:
        """[rows]: the upstream gradient that the next calls of `gradient` are for."""
        temperature = self.rows_temperature
        self.grad = grad_logprob / (temperature.squeeze(1) if isinstance(temperature, Tensor) else temperature)

    def gradient(self, part: int, live: Tensor | None) -> Tensor:
        """Gradient of the logits of slice `part`, [live rows, columns]. Uses the kept exponentials up."""
        rows = slice(None) if live is None else live
        tile, targets = take(self._tile(part), rows), take(self.rows_targets, rows)
        columns = (self.grad, self.factor[part], self.logprob, self.target_logit, self.logsumexp)
        grad, factor, logprob, target_logit, logsumexp = (take(column, rows)[:, None] for column in columns)
        local, inside = target_columns(targets, self.slices[part])
        at_target = -torch.expm1(logprob) * grad
        if self.head.softcap is None:
            tile.mul_(factor.exp().mul_(-grad))
        else:  # d capped / d raw = 1 - (capped / cap)^2
            per_token = isinstance(self.rows_temperature, Tensor)
            share = (take(self.rows_temperature, rows) if per_token else self.rows_temperature) / self.head.softcap
            slope = tile.log().add_(factor + logsumexp).mul_(share).clamp_(-1, 1).square_().neg_().add_(1)
            tile.mul_(factor.exp().mul_(-grad)).mul_(slope)
            at_target = at_target * (1 - (target_logit * share) ** 2)
        return tile.scatter_(1, local, torch.where(inside[:, None], at_target, tile.gather(1, local)))

    def _tile(self, part: int) -> Tensor:
        tokens, columns_of = self.rows_hidden.shape[0], self.slices[part]
        width = columns_of.stop - columns_of.start
        return self.buffers[part][: tokens * width].view(tokens, width)
