"""Attention over packed sequences, for any model that asks transformers' AttentionInterface for its attention.

`hacpo_varlen` does two things, told apart by whether cu_seqlens came with the call:
- packed (the policy's forward pass): every sequence attends to itself only, or to itself and to a shared prompt;
- padded (generation with a KV cache, on the same model): exactly transformers' sdpa.

The mask is made before any layer runs and cannot see cu_seqlens, so the policy's forward pass says `with packed():`.
Nothing else depends on that context: a layer that gradient checkpointing runs again, later and outside it, gets its
arguments replayed, cu_seqlens and the absent mask among them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from hacpo_fast.errors import UserError, install_hint
from hacpo_fast.policy.shared_attention import batches_pay, can_merge, expanded, merged
from hacpo_fast.policy.shared_prompts import SharedPrompts

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # a torch without it; per-segment attention is right everywhere, only slower
    varlen_attn = None

HACPO_VARLEN, HACPO_SDPA = "hacpo_varlen", "hacpo_sdpa"
FLASH_3, FLASH_2 = "flash_attention_3", "flash_attention_2"

# Whether torch's kernel takes fewer key-value heads than query heads: not in its first versions.
_KERNEL_GROUPS = varlen_attn is not None and "enable_gqa" in inspect.signature(varlen_attn).parameters

# What models hand on to their attention function without meaning that it should compute anything else.
_HARMLESS = frozenset(
    "position_ids cache_position use_cache cache past_key_values position_embeddings deterministic num_items_in_batch "
    "output_attentions output_hidden_states output_router_logits return_dict".split()
)
_SINKS = ("s_aux", "sinks")


@dataclass
class Windows:
    """Local attention in one packed forward pass: window sizes that the model's masks asked for, that layers used."""

    asked: set[int] = field(default_factory=set)
    used: set[int] = field(default_factory=set)

    @property
    def lost(self) -> set[int]:
        """Sizes that only a mask knew of: no layer named them to its attention, so packed attention ignored them."""
        return self.asked - self.used


_packed: ContextVar[Windows | None] = ContextVar("hacpo_packed", default=None)


@contextmanager
def packed() -> Iterator[Windows]:
    """The forward pass inside is packed: masks are left out, and an attention layer without cu_seqlens is an error.

    Nested, it keeps the outer record.
    """
    windows = _packed.get() or Windows()
    token = _packed.set(windows)
    try:
        yield windows
    finally:
        _packed.reset(token)


def choose_attention(device: torch.device | str, dtype: torch.dtype, wanted: str = "auto") -> str:
    """The attention implementation that transformers should use for a policy, by the setting `wanted`:

    flash_attention_3, flash_attention_2: the flash-attn packages; varlen: torch's own kernel of that kind; sdpa: one
    call of torch's attention for each sequence, on a CPU for several of similar length; auto: the first of these that
    is there and fits the device. All take the same cu_seq_lens arguments.

    Raises:
        UserError: what is asked for is not there, or needs another device or dtype.
    """
    device = torch.device(device)
    if wanted == "sdpa":
        return HACPO_SDPA
    reasons = {name: _against(name, device, dtype) for name in (FLASH_3, FLASH_2, "varlen")}
    if wanted == "auto":
        # What torch's kernel cannot do (a width of heads, say), HACPO_VARLEN does one sequence at a time.
        return next((name for name in (FLASH_3, FLASH_2) if reasons[name] is None), HACPO_VARLEN)
    if reasons[wanted] is not None:
        raise UserError(f"training.attention={wanted}: {reasons[wanted]}; use auto or sdpa")
    return HACPO_VARLEN if wanted == "varlen" else wanted


def describe_attention(implementation: str, device: torch.device, dtype: torch.dtype) -> str:
    """In words, what `choose_attention` chose."""
    if implementation == HACPO_SDPA or (implementation == HACPO_VARLEN and _against("varlen", device, dtype)):
        return "sdpa for each sequence"
    return "torch's varlen kernel" if implementation == HACPO_VARLEN else implementation


def _against(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this kernel cannot be used."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return f"it needs a GPU and 16-bit weights, here are {device.type} and {str(dtype).removeprefix('torch.')}"
    if name == "varlen":
        return "this torch has no torch.nn.attention.varlen" if varlen_attn is None else None
    if not (is_flash_attn_3_available() if name == FLASH_3 else is_flash_attn_2_available()):
        return "flash-attn-3 is not installed" if name == FLASH_3 else f"it is not installed; {install_hint('flash')}"
    if name == FLASH_3 and torch.cuda.get_device_capability(device)[0] != 9:
        return "it is made for GPUs of the Hopper generation"
    return None


def varlen_mask(*args: Any, config: Any = None, use_vmap: bool = False, local_size: int | None = None, **kwargs: Any):
    """Mask function of `hacpo_varlen`: transformers' sdpa mask, but none inside `packed()`.

    Raises:
        UserError: the model overlays a pattern of its own on the causal mask of a packed forward pass.
    """
    windows = _packed.get()
    if windows is None:
        return sdpa_mask(*args, config=config, use_vmap=use_vmap, local_size=local_size, **kwargs)
    if use_vmap:
        raise UserError(f"{_name(config)} uses an attention mask of its own, which packed sequences cannot follow")
    # Some models make the mask of every layer type they know, even where no layer is of that type.
    layer_types = getattr(config, "layer_types", None)
    if local_size is not None and (layer_types is None or {"sliding_attention", "chunked_attention"} & {*layer_types}):
        windows.asked.add(local_size)
    return None


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    kernel: bool = True,
    shared_prompts: SharedPrompts | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function of `hacpo_varlen`, called by the model's attention layers.

    Args:
        query: [B, heads, T, D]; key, value: [B, kv_heads, S, D]. With cu_seqlens B is 1 and S is T.
        attention_mask: bool [B, 1, T, S] or None (causal). None with cu_seqlens.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it.
        softcap: scores become softcap * tanh(scores / softcap).
        kernel: torch's varlen kernel is used where it can be; `hacpo_sdpa` is the same function without it.
        cu_seq_lens_q: [S+1] int32, where the segments begin that attend to themselves only; cu_seq_lens_k is the same.
        max_length_q: tokens of the longest sequence, its prompt among them; max_length_k is the same.
        shared_prompts: which segments also attend to another one, their prompt.

    Returns:
        [B, T, heads, D] and None in the place of the attention weights.

    Raises:
        UserError: the layer asks for something that is not computed here (attention sinks, biases, dropout ...), or
            a packed forward pass reaches a layer without cu_seqlens.
    """
    if any(others.get(name) is not None for name in _SINKS):
        raise UserError(f"{_name(module)} uses attention sinks, which {HACPO_VARLEN} does not compute")
    if cu_seq_lens_q is None:
        if _packed.get() is not None:
            raise UserError(
                f"the model does not hand cu_seq_lens on to {_name(module)}, so packed sequences would leak into "
                "each other"
            )
        if softcap is not None:
            output = _softcapped(query, key, value, attention_mask, scaling, softcap)
            return output.transpose(1, 2).contiguous(), None
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **others
        )
    unknown = sorted(name for name, given in others.items() if name not in _HARMLESS and given is not None)
    if dropout:
        unknown.append("dropout")
    if attention_mask is not None:
        unknown.append("attention_mask")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        unknown.append("is_causal=False")
    if unknown:
        raise UserError(f"{_name(module)} asks its attention for {', '.join(unknown)}: not known for packed sequences")
    if (windows := _packed.get()) is not None and sliding_window is not None:
        windows.used.add(sliding_window)
    if sliding_window is not None and max_length_q is not None and sliding_window >= max_length_q:
        sliding_window = None  # it sees all of the longest sequence

    def whole_sequences(query: Tensor, key: Tensor, value: Tensor, cu: Tensor) -> Tensor:
        if kernel and softcap is None and _has_varlen_kernel(query, value):
            return _fused(query, key, value, cu, max_length_q, scaling, sliding_window)
        return _per_segment(query, key, value, cu, scaling, sliding_window, softcap)

    # A sequence alone goes to sdpa itself, which is therefore what the probes hold the rest against.
    can = softcap is None and sliding_window is None and can_merge(query, value)
    if can and (shared_prompts is not None or batches_pay(query, cu_seq_lens_q)):
        output = merged(query, key, value, cu_seq_lens_q, shared_prompts, scaling)
    elif shared_prompts is None:
        output = whole_sequences(query, key, value, cu_seq_lens_q)
    else:
        output = expanded(query, key, value, shared_prompts, whole_sequences)
    return output, None


def _has_varlen_kernel(query: Tensor, value: Tensor) -> bool:
    # Flash attention computes in 16 bits, on heads of a multiple of 8 up to 256, from Ampere on.
    if varlen_attn is None or not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    head = query.shape[-1]
    fits = head <= 256 and head % 8 == 0 and value.shape[-1] <= head
    return fits and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, cu: Tensor, longest: int, scaling: float | None, window: int | None
) -> Tensor:
    """One kernel for all sequences. [1, heads, T, D] -> [1, T, heads, value's D]."""
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [T, heads, D]
    width, groups = value.shape[-1], query.shape[1] // key.shape[1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    value = pad(value, (0, query.shape[-1] - width))  # latent attention has narrower values; the kernel wants one width
    grouped = {"enable_gqa": True} if _KERNEL_GROUPS else {}
    if groups > 1 and not _KERNEL_GROUPS:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    sides = (-1 if window is None else window - 1, 0)  # tokens seen to the left and to the right
    output = varlen_attn(query, key, value, cu, cu, longest, longest, scale=scaling, window_size=sides, **grouped)
    return output[..., :width].unsqueeze(0)


def _per_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """One call for each sequence. [1, heads, T, D] -> [1, T, heads, D]."""
    lengths = cu.diff().tolist()
    # split and not slices: the gradient of N slices is N tensors of full size, that of a split is one concatenation.
    segments = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = []
    for q, k, v in segments:
        mask = _band(q.shape[2], window, q.device) if window is not None and window < q.shape[2] else None
        if softcap is not None:
            outputs.append(_softcapped(q, k, v, mask, scaling, softcap))
            continue
        grouped = q.shape[1] != k.shape[1]
        outputs.append(
            scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
            )
        )
    return torch.cat([output.transpose(1, 2) for output in outputs], dim=1)


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    """Plain attention with capped scores, which no fused kernel of torch has. [B, heads, T, D] -> the same."""
    batch, heads, length, width = query.shape
    kv_heads, total = key.shape[1], key.shape[2]
    scaling = width**-0.5 if scaling is None else scaling
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, length, width)
    scores = (grouped @ key.unsqueeze(2).transpose(-1, -2)) * scaling  # [B, kv_heads, group, T, S]
    scores = softcap * torch.tanh(scores / softcap)
    if mask is None and length > 1:
        # As in sdpa, a missing mask is causal from the first key on; keys past the queries are an unused cache.
        mask = _band(length, None, query.device, total)
    if mask is not None:
        scores = scores.masked_fill(~mask.view(-1, 1, 1, *mask.shape[-2:]), torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value.unsqueeze(2)).reshape(batch, heads, length, -1)


def _band(length: int, window: int | None, device: torch.device, total: int | None = None) -> Tensor:
    """bool [length, total]: what a causal query sees, at most `window` tokens with itself."""
    seen = torch.ones(length, total or length, dtype=torch.bool, device=device).tril()
    return seen if window is None else seen.triu(1 - window)


def _name(thing: Any) -> str:
    return type(thing).__name__


AttentionInterface.register(HACPO_VARLEN, varlen_attention)
AttentionMaskInterface.register(HACPO_VARLEN, varlen_mask)
AttentionInterface.register(HACPO_SDPA, partial(varlen_attention, kernel=False))
AttentionMaskInterface.register(HACPO_SDPA, varlen_mask)
