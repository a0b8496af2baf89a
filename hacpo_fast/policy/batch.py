"""Sequences laid end to end, as the policy reads them.

A sequence's input is its prompt and its response without the last token: that one is predicted, never read. The hidden
state of the last prompt token predicts the first response token, so a prompt needs at least one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TokenPair = tuple[np.ndarray, np.ndarray]  # prompt ids [P >= 1], response ids [L >= 0]


def input_lengths(sequences: Sequence[TokenPair]) -> np.ndarray:
    """Input tokens of each sequence, [N] int64: what `packing.pack` weighs and `PackedBatch` lays out.

    Raises:
        ValueError: a prompt is empty.
    """
    prompts, responses = _lengths(sequences)
    return prompts + np.maximum(responses - 1, 0)


@dataclass(frozen=True)
class PackedBatch:
    """N sequences, end to end: T input tokens, of which R predict a response token.

    Attributes:
        input_ids: [T] int64.
        position_ids: [T] int64, restarting at 0 with every sequence.
        cu_seqlens: [N+1] int32, where each sequence begins in the T inputs, and T.
        rows: [R] int64, ascending positions in the T inputs whose hidden state predicts a response token.
        targets: [R] int64, that token.
        response_cu_seqlens: [N+1] int32, where each response begins in the R rows, and R.
        max_length: inputs of the longest sequence.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    rows: Tensor
    targets: Tensor
    response_cu_seqlens: Tensor
    max_length: int

    @classmethod
    def build(cls, sequences: Sequence[TokenPair], device: torch.device | str = "cpu") -> PackedBatch:
        """Lay `sequences` (prompt ids, response ids: integer vectors) end to end on `device`.

        Every tensor goes to the device in one transfer, which on CUDA does not wait for the device. An empty response
        has no rows.

        Raises:
            ValueError: no sequences, an empty prompt, or more than 2^31 - 1 tokens.
        """
        if not sequences:
            raise ValueError("a batch needs at least one sequence")
        prompts, responses = _lengths(sequences)
        starts = _cumulative(prompts + np.maximum(responses - 1, 0))
        response_starts = _cumulative(responses)
        if starts[-1] >= 2**31:
            raise ValueError(f"{starts[-1]} tokens in one batch do not fit cu_seqlens of int32")
        parts = [part for prompt, response in sequences for part in (prompt, response[:-1])]
        # Row r of a response that begins at row s reads the input at (its last prompt token) + (r - s).
        first_row = starts[:-1] + prompts - 1 - response_starts[:-1]
        host = {
            "input_ids": np.concatenate(parts).astype(np.int64, copy=False),
            "position_ids": np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts)),
            "cu_seqlens": starts.astype(np.int32),
            "rows": np.arange(response_starts[-1]) + np.repeat(first_row, responses),
            "targets": np.concatenate([response for _, response in sequences]).astype(np.int64, copy=False),
            "response_cu_seqlens": response_starts.astype(np.int32),
        }
        tensors = {name: _to_device(array, torch.device(device)) for name, array in host.items()}
        return cls(**tensors, max_length=int(np.diff(starts).max()))

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1


def _lengths(sequences: Sequence[TokenPair]) -> tuple[np.ndarray, np.ndarray]:
    prompts = np.fromiter((len(prompt) for prompt, _ in sequences), np.int64, len(sequences))
    responses = np.fromiter((len(response) for _, response in sequences), np.int64, len(sequences))
    if not prompts.all():
        first = int(np.argmin(prompts))
        raise ValueError(f"sequence {first} has an empty prompt; one token, such as BOS, must stand before a response")
    return prompts, responses


def _cumulative(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _to_device(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    # Only pinned memory is copied while the host goes on; torch keeps it alive until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
