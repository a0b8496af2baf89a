"""Prompts that are laid out once for all of their responses: where everything lies, and how to undo it.

A batch with shared prompts is laid out as

    shared prompts | inputs of their responses, prompt by prompt | other sequences, each with a prompt of its own

so that the keys of the shared prompts and the queries of their responses are two slices. A token of a response sees
its prompt and the tokens before it in its own response; positions go on from the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag


@dataclass(frozen=True)
class Repeated:
    """Rows of a tensor in an order in which some come several times. All tensors int64, on one device.

    Attributes:
        index: [M] the source row of each.
        order: [M] the same places, by source row.
        offsets: [S] where each of the S source rows begins in `order`; a row without copies is empty there.
    """

    index: Tensor
    order: Tensor
    offsets: Tensor

    @staticmethod
    def tables(index: np.ndarray, sources: int) -> dict[str, np.ndarray]:
        """The three tables of `index` [M] into `sources` rows."""
        counts = np.bincount(index, minlength=sources)
        return {
            "index": index,
            "order": np.argsort(index, kind="stable"),
            "offsets": np.cumsum(counts) - counts,
        }

    def rows(self, tensor: Tensor) -> Tensor:
        """[S, ...] -> [M, ...], differentiable."""
        return _Repeat.apply(tensor, self.index, self.order, self.offsets)

    def sums(self, tensor: Tensor) -> Tensor:
        """[M, ...] -> [S, ...]: the sum over all copies of a row, zero where there are none."""
        return _sums(tensor, self.order, self.offsets)

    @property
    def first(self) -> Tensor:
        """[S] the first copy of each row; every row must have one."""
        return self.order[self.offsets]


class _Repeat(torch.autograd.Function):
    """index_select, whose own gradient adds copies up in 16 bits where these are 16, on CUDA in a random order."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor, order: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(order, offsets)
        return tensor.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _sums(gradient, *ctx.saved_tensors), None, None, None


def _sums(tensor: Tensor, order: Tensor, offsets: Tensor) -> Tensor:
    if not len(order):
        return tensor.new_zeros(len(offsets), *tensor.shape[1:])
    flat = embedding_bag(order, tensor.reshape(len(tensor), -1), offsets, mode="sum")
    return flat.view(len(offsets), *tensor.shape[1:])


@dataclass(frozen=True)
class SharedPrompts:
    """What attention needs to know of a batch with shared prompts.

    Attributes:
        prompts: tokens of each shared prompt; they are the first of the batch.
        responses: input tokens of all responses of each of them; they come next.
        whole: the batch's tokens as if every sequence had its prompt: [M] of them, sequence by sequence.
        whole_cu_seqlens: [N+1] int32, where each sequence begins there, and M.
    """

    prompts: tuple[int, ...]
    responses: tuple[int, ...]
    whole: Repeated
    whole_cu_seqlens: Tensor
