"""Packed sequences as a few padded batches of similar length, for attention kernels that know nothing of packing.

On a CPU, a call of the kernel costs more than its work where sequences are short. Under a causal mask padding at the
end is exact, for no token sees what comes after it. It repeats the sequence's last token, so that whatever a kernel
computes there is as finite as the sequence itself, and a sequence never meets a number of another one.

Measured, 128 sequences of 20-35 tokens, 2 heads of 32: the whole model's forward and backward take 8 % (3 layers) and
17 % (2 layers) less time on one core; long sequences are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

# In products (query x key x width over all heads), what takes as long, forward and backward: one more call of the
# kernel, and to lay out anew all numbers that belong to one number of the queries. Measured on one core of an EPYC.
CALL_PRODUCTS = 30_000
COPY_PRODUCTS = 4


@dataclass(frozen=True)
class LengthBatches:
    """Where the T tokens of N packed sequences stand in padded batches of M tokens altogether.

    Attributes:
        shapes: (sequences, padded length) of each batch.
        tokens: [M] int64, the token at each padded place; None where every sequence is a batch of its own, in order.
        places: [T] int64, the padded place of each token; None likewise.
    """

    shapes: tuple[tuple[int, int], ...]
    tokens: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    @lru_cache(maxsize=16)  # every layer asks for the same, forward and backward
    def plan(cls, lengths: tuple[int, ...], width: int) -> LengthBatches:
        """Batches for sequences of `lengths` tokens, some of which may be 0; width: numbers of a query, all heads.

        From long to short, a sequence joins the batch while computing its padding costs less than another call.
        Sequences stay as they are where that saves less than copying them costs, as it does where they are long.

        Raises:
            ValueError: there are no tokens.
        """
        if not any(lengths):
            raise ValueError("there are no tokens to attend to")
        alone = cls(tuple((1, length) for length in lengths if length))
        batches: list[list[int]] = []
        padding = 0
        for index in sorted(filter(lengths.__getitem__, range(len(lengths))), key=lengths.__getitem__, reverse=True):
            longest = lengths[batches[-1][0]] if batches else 0
            products = (longest**2 - lengths[index] ** 2) * width
            if batches and products <= CALL_PRODUCTS:
                batches[-1].append(index)
                padding += products
            else:
                batches.append([index])
        saved = (len(alone.shapes) - len(batches)) * CALL_PRODUCTS - padding
        if saved <= sum(lengths) * width * COPY_PRODUCTS:
            return alone
        shapes = tuple((len(batch), lengths[batch[0]]) for batch in batches)
        return cls(shapes, *_tables(np.array(lengths), batches, shapes))

    def split(self, packed: Tensor) -> list[Tensor]:
        """[1, heads, T, ...] -> [sequences, heads, padded length, ...] of each batch."""
        if self.tokens is None:
            return list(packed.split([length for _, length in self.shapes], dim=2))
        return self._cut(packed[0].transpose(0, 1).index_select(0, self.tokens))

    def split_gradient(self, packed: Tensor) -> list[Tensor]:
        """The same, with zeros as padding."""
        if self.tokens is None:
            return self.split(packed)
        rows = packed[0].transpose(0, 1)
        padded = rows.new_zeros(len(self.tokens), *rows.shape[1:])
        return self._cut(padded.index_copy_(0, self.places, rows))

    def join(self, batches: list[Tensor]) -> Tensor:
        """The inverse, without the padding, tokens before heads: -> [1, T, heads, ...]."""
        padded = torch.cat([batch.transpose(1, 2).flatten(0, 1) for batch in batches])
        return (padded if self.places is None else padded.index_select(0, self.places)).unsqueeze(0)

    def _cut(self, rows: Tensor) -> list[Tensor]:
        parts = rows.split([count * length for count, length in self.shapes])
        return [
            part.view(count, length, *part.shape[1:]).transpose(1, 2)
            for part, (count, length) in zip(parts, self.shapes, strict=True)
        ]


def _tables(lengths: np.ndarray, batches: list[list[int]], shapes: tuple[tuple[int, int], ...]) -> tuple[Tensor, ...]:
    """`tokens` and `places` of `LengthBatches`."""
    starts = np.cumsum(lengths) - lengths
    tokens, places = [], np.empty(lengths.sum(), dtype=np.int64)
    before = 0
    for batch, (count, longest) in zip(batches, shapes, strict=True):
        steps = np.arange(longest)
        here = starts[batch, None] + np.minimum(steps, lengths[batch, None] - 1)
        real = steps < lengths[batch, None]
        places[here[real]] = before + np.flatnonzero(real)
        tokens.append(here.ravel())
        before += count * longest
    return torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(places)
