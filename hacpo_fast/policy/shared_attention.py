"""Attention over a batch with shared prompts, see `shared_prompts`. Two ways, equal but for rounding.

`merged` reads a prompt's keys once for all of its responses. Softmax over the keys of two parts is the mean of the
parts' own softmaxes, weighted by their sums of exponentials: so responses attend to their prompt and to themselves in
separate calls, which also say log-sum-exp, and the two outputs are merged. The gradient of a score depends on the other
part only through the row's final output and log-sum-exp: so each part runs its kernel's backward pass, given these.

Attention of responses and prompts to themselves takes those of similar length in one call, see `length_batches`, and is
all of `merged` where no prompts are shared.

`expanded` repeats queries, keys and values for every sequence and leaves the rest to any attention over whole
sequences, windows and capped scores among it. What is around attention still runs once for each token of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hacpo_fast.policy.length_batches import LengthBatches
from hacpo_fast.policy.shared_prompts import SharedPrompts

# The CPU's fused kernel behind scaled_dot_product_attention, which also takes fewer key-value heads than query heads.
# The names are private to torch: where they are missing, `expanded` does it.
_kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_kernel_backward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def can_merge(query: Tensor, value: Tensor) -> bool:
    """Whether `merged` takes these: on the CPU, values as wide as queries and keys."""
    there = _kernel is not None and _kernel_backward is not None
    return there and query.device.type == "cpu" and query.shape[-1] == value.shape[-1]


def batches_pay(query: Tensor, cu: Tensor) -> bool:
    """Whether `merged` is faster than a call for each segment, no prompts being shared: some are of similar length."""
    plan = LengthBatches.plan(tuple(cu.diff().tolist()), query.shape[1] * query.shape[3])
    return plan.tokens is not None


def merged(
    query: Tensor, key: Tensor, value: Tensor, cu: Tensor, shared: SharedPrompts | None, scale: float | None
) -> Tensor:
    """[1, heads, T, D] (key, value: [1, kv_heads, T, D]) -> [1, T, heads, D]; cu [S+1]: the batch's segments."""
    tensors = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value))
    prompts, responses = (shared.prompts, shared.responses) if shared else ((), ())
    return _Merged.apply(*tensors, tuple(cu.diff().tolist()), prompts, responses, scale)


def expanded(query: Tensor, key: Tensor, value: Tensor, shared: SharedPrompts, attend: Callable[..., Tensor]) -> Tensor:
    """The same by `attend`: of whole sequences [1, heads, M, D] and their cu [N+1] it makes [1, M, heads, D]."""
    tensors = (
        shared.whole.rows(tensor[0].transpose(0, 1)).transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)
    )
    return attend(*tensors, shared.whole_cu_seqlens).index_select(1, shared.whole.first)


class _Merged(torch.autograd.Function):
    """segments: lengths of what attends to itself, causally. prompts, responses: see `SharedPrompts`."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: tuple[int, ...],
        prompts: tuple[int, ...],
        responses: tuple[int, ...],
        scale: float | None,
    ) -> Tensor:
        batches = LengthBatches.plan(segments, query.shape[1] * query.shape[3])
        parts = zip(*(batches.split(tensor) for tensor in (query, key, value)), strict=True)
        inside = [_kernel(*part, 0.0, True, scale=scale) for part in parts]
        output, lse = (batches.join(results) for results in zip(*inside, strict=True))
        if any(responses):
            asked, seen = slice(sum(prompts), sum(prompts) + sum(responses)), slice(0, sum(prompts))
            pairs = _split_pairs((query[:, :, asked],), (key[:, :, seen], value[:, :, seen]), prompts, responses)
            there, there_lse = _join([_kernel(*pair, 0.0, False, scale=scale) for pair in pairs if pair[0].shape[2]])
            here, here_lse = output[:, asked], lse[:, asked]
            weight = torch.sigmoid(there_lse - here_lse).unsqueeze(-1)  # of the prompt; at least float32
            output[:, asked] = torch.lerp(here.to(weight.dtype), there.to(weight.dtype), weight)
            lse[:, asked] = torch.logaddexp(here_lse, there_lse)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.batches, ctx.prompts, ctx.responses, ctx.scale = batches, prompts, responses, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        prompts, responses, scale = ctx.prompts, ctx.responses, ctx.scale
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        gradient, output, lse = (tensor.transpose(1, 2) for tensor in (gradient, *rest))
        # Padding repeats a token whose row is in lse, so exp(score - lse) is at most 1 there; its gradient is zero.
        repeated = (ctx.batches.split(tensor) for tensor in (query, key, value, output, lse))
        parts = zip(ctx.batches.split_gradient(gradient), *repeated, strict=True)
        inside = [_kernel_backward(*part, 0.0, True, scale=scale) for part in parts]
        sums = [ctx.batches.join(results) for results in zip(*inside, strict=True)]
        if any(responses):
            asked, seen = slice(sum(prompts), sum(prompts) + sum(responses)), slice(0, sum(prompts))
            of_queries = tuple(tensor[:, :, asked] for tensor in (gradient, query, output, lse))
            pairs = _split_pairs(of_queries, (key[:, :, seen], value[:, :, seen]), prompts, responses)
            crossing = [
                _kernel_backward(g, q, k, v, o, e, 0.0, False, scale=scale)
                if q.shape[2]
                else (q, torch.zeros_like(k), torch.zeros_like(v))
                for g, q, o, e, k, v in pairs
            ]
            for total, place, part in zip(sums, (asked, seen, seen), _join(crossing), strict=True):
                total[:, place] += part
        return *(total.transpose(1, 2) for total in sums), None, None, None, None


def _split(tensors: tuple[Tensor, ...], lengths: Sequence[int]) -> Iterable[tuple[Tensor, ...]]:
    return zip(*(tensor.split(lengths, dim=2) for tensor in tensors), strict=True)


def _split_pairs(
    of_queries: tuple[Tensor, ...], of_keys: tuple[Tensor, ...], prompts: Sequence[int], responses: Sequence[int]
) -> Iterable[tuple[Tensor, ...]]:
    """What belongs to the responses of each prompt, then what belongs to the prompt."""
    return (
        (*queries, *keys) for queries, keys in zip(_split(of_queries, responses), _split(of_keys, prompts), strict=True)
    )


def _join(results: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """The kernel's results for all pieces, tokens before heads as the kernel itself lays them out."""
    return [torch.cat([part.transpose(1, 2) for part in parts], dim=1) for parts in zip(*results, strict=True)]
