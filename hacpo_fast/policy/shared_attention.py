"""Attention over a batch with shared prompts, see `shared_prompts`. Two ways, equal but for rounding.

`merged` reads a prompt's keys once for all of its responses. Softmax over the keys of two parts is the mean of the
parts' own softmaxes, weighted by their sums of exponentials: so responses attend to their prompt and to themselves in
separate calls, which also say log-sum-exp, and the two outputs are merged. The gradient of a score depends on the other
part only through the row's final output and log-sum-exp: so each part runs its kernel's backward pass, given these.

`expanded` repeats queries, keys and values for every sequence and leaves the rest to any attention over whole
sequences, windows and capped scores among it. What is around attention still runs once for each token of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hacpo_fast.policy.shared_prompts import SharedPrompts

# The CPU's fused kernel behind scaled_dot_product_attention, which also takes fewer key-value heads than query heads.
# The names are private to torch: where they are missing, `expanded` does it.
_kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_kernel_backward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def can_merge(query: Tensor, value: Tensor) -> bool:
    """Whether `merged` takes these: on the CPU, values as wide as queries and keys."""
    there = _kernel is not None and _kernel_backward is not None
    return there and query.device.type == "cpu" and query.shape[-1] == value.shape[-1]


def merged(query: Tensor, key: Tensor, value: Tensor, cu: Tensor, shared: SharedPrompts, scale: float | None) -> Tensor:
    """[1, heads, T, D] (key, value: [1, kv_heads, T, D]) -> [1, T, heads, D]; cu [S+1]: the batch's segments."""
    tensors = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value))
    return _Merged.apply(*tensors, cu.diff().tolist(), shared.slices(), scale)


def expanded(query: Tensor, key: Tensor, value: Tensor, shared: SharedPrompts, attend: Callable[..., Tensor]) -> Tensor:
    """The same by `attend`: of whole sequences [1, heads, M, D] and their cu [N+1] it makes [1, M, heads, D]."""
    tensors = (
        shared.whole.rows(tensor[0].transpose(0, 1)).transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)
    )
    return attend(*tensors, shared.whole_cu_seqlens).index_select(1, shared.whole.first)


class _Merged(torch.autograd.Function):
    """segments: lengths of what attends to itself, causally; pairs: tokens of a shared prompt and of its responses."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: list[int],
        pairs: list[tuple[slice, slice]],
        scale: float | None,
    ) -> Tensor:
        own = [_kernel(q, k, v, 0.0, True, scale=scale) for q, k, v in _split((query, key, value), segments)]
        # The kernel's own layout: tokens before heads.
        output, lse = (torch.cat([part.transpose(1, 2) for part in parts], 1) for parts in zip(*own, strict=True))
        for prompt, answered in pairs:
            there, there_lse = _kernel(
                query[:, :, answered], key[:, :, prompt], value[:, :, prompt], 0.0, False, scale=scale
            )
            there, there_lse = there.transpose(1, 2), there_lse.transpose(1, 2)
            here, here_lse = output[:, answered], lse[:, answered]
            weight = torch.sigmoid(there_lse - here_lse).unsqueeze(-1)  # of the prompt; at least float32
            output[:, answered] = torch.lerp(here.to(weight.dtype), there.to(weight.dtype), weight)
            lse[:, answered] = torch.logaddexp(here_lse, there_lse)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.segments, ctx.pairs, ctx.scale = segments, pairs, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        gradient, output, lse = (tensor.transpose(1, 2) for tensor in (gradient, *rest))
        own = [
            _kernel_backward(*part, 0.0, True, scale=ctx.scale)
            for part in _split((gradient, query, key, value, output, lse), ctx.segments)
        ]
        sums = [torch.cat([part.transpose(1, 2) for part in parts], 1) for parts in zip(*own, strict=True)]
        for prompt, answered in ctx.pairs:
            parts = _kernel_backward(
                gradient[:, :, answered], query[:, :, answered], key[:, :, prompt], value[:, :, prompt],
                output[:, :, answered], lse[:, :, answered], 0.0, False, scale=ctx.scale,
            )  # fmt: skip
            for total, place, part in zip(sums, (answered, prompt, prompt), parts, strict=True):
                total[:, place] += part.transpose(1, 2)
        return *(total.transpose(1, 2) for total in sums), None, None, None


def _split(tensors: tuple[Tensor, ...], lengths: list[int]) -> zip:
    return zip(*(tensor.split(lengths, dim=2) for tensor in tensors), strict=True)
