"""Sequences laid end to end, as the policy reads them.

A sequence's input is its prompt and its response without the last token: that one is predicted, never read. The hidden
state of the last prompt token predicts the first response token, so a prompt needs at least one token. Responses to the
same prompt may share one copy of it, see `shared_prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.policy.shared_prompts import Repeated, SharedPrompts

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
        cu_seqlens: [S+1] int32, where each of S segments begins in the T inputs, and T. A segment is a sequence;
            with shared prompts also a shared prompt, or the inputs of one of its responses.
        rows: [R] int64, places in the T inputs whose hidden state predicts a response token; one place serves the
            first token of all responses of a shared prompt.
        targets: [R] int64, that token.
        response_cu_seqlens: [N+1] int32, where each response begins in the R rows, and R.
        max_length: inputs of the longest sequence, its prompt among them.
        sequence_tokens: inputs of all sequences, a prompt counted with each of them; T without shared prompts.
        shared: the shared prompts, None where there are none.
        shared_rows: `rows` with what its gradient needs, None without shared prompts.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    rows: Tensor
    targets: Tensor
    response_cu_seqlens: Tensor
    max_length: int
    sequence_tokens: int
    shared: SharedPrompts | None = None
    shared_rows: Repeated | None = None

    @classmethod
    def build(
        cls,
        sequences: Sequence[TokenPair],
        device: torch.device | str = "cpu",
        groups: np.ndarray | None = None,
    ) -> PackedBatch:
        """Lay `sequences` (prompt ids, response ids: integer vectors) end to end on `device`.

        groups: [N] integers; consecutive sequences with the same one have the same prompt, which is laid out once.
        None: every sequence brings its prompt.

        Every tensor goes to the device in one transfer, which on CUDA does not wait for the device. An empty response
        has no rows.

        Raises:
            ValueError: no sequences, an empty prompt, more than 2^31 - 1 tokens, or two prompts in one group.
        """
        if not sequences:
            raise ValueError("a batch needs at least one sequence")
        prompts, responses = _lengths(sequences)
        inputs = np.maximum(responses - 1, 0)
        whole_starts, response_starts = _cumulative(prompts + inputs), _cumulative(responses)
        if whole_starts[-1] >= 2**31:
            raise ValueError(f"{whole_starts[-1]} tokens in one batch do not fit cu_seqlens of int32")
        run = _runs(sequences, groups)
        first, in_run = np.diff(run, prepend=-1) > 0, np.bincount(run)[run] > 1
        shared, heads = np.flatnonzero(in_run), np.flatnonzero(in_run & first)  # responses; the first of each prompt
        own = np.flatnonzero(~in_run)

        # Pieces in the order of the layout; the last array says at which position each begins.
        parts = [sequences[row][0] for row in heads] + [sequences[row][1][:-1] for row in shared]
        parts += [part for row in own for part in (sequences[row][0], sequences[row][1][:-1])]
        lengths = np.concatenate([prompts[heads], inputs[shared], (prompts + inputs)[own]])
        begins = np.concatenate([np.zeros_like(heads), prompts[shared], np.zeros_like(own)])
        starts = _cumulative(lengths)
        prompt_at, response_at = np.empty_like(prompts), np.empty_like(prompts)
        at_heads, at_shared, at_own = np.split(starts[:-1], [len(heads), len(heads) + len(shared)])
        prompt_at[shared] = np.repeat(at_heads, np.bincount(run)[run[heads]])
        response_at[shared] = at_shared
        prompt_at[own], response_at[own] = at_own, at_own + prompts[own]

        # Row r of a response that begins at row s belongs to its input r - s - 1, row s to its last prompt token.
        rows = np.arange(response_starts[-1]) + np.repeat(response_at - 1 - response_starts[:-1], responses)
        answered = responses > 0
        rows[response_starts[:-1][answered]] = (prompt_at + prompts - 1)[answered]
        host = {
            "input_ids": np.concatenate(parts).astype(np.int64, copy=False),
            "position_ids": np.arange(starts[-1]) - np.repeat(starts[:-1] - begins, lengths),
            "cu_seqlens": np.concatenate([[0], starts[1:][lengths > 0]]).astype(np.int32),
            "rows": rows,
            "targets": np.concatenate([response for _, response in sequences]).astype(np.int64, copy=False),
            "response_cu_seqlens": response_starts.astype(np.int32),
        }
        device = torch.device(device)
        tensors = {name: to_device(array, device) for name, array in host.items()}
        batch = cls(
            **tensors,
            max_length=int(np.diff(whole_starts).max()),
            sequence_tokens=int(whole_starts[-1]),
        )
        if not len(shared):
            return batch
        # The sequences one by one: prompt, response inputs, prompt, ... and what to add to a place among them.
        pieces = np.stack([prompts, inputs], axis=1).ravel()
        places = np.stack([prompt_at, response_at], axis=1).ravel()
        whole = np.arange(whole_starts[-1]) + np.repeat(places - _cumulative(pieces)[:-1], pieces)
        inputs_by_run = np.bincount(run[shared], inputs[shared])[run[heads]]
        return replace(
            batch,
            shared=SharedPrompts(
                prompts=tuple(prompts[heads].tolist()),
                responses=tuple(inputs_by_run.astype(np.int64).tolist()),
                whole=_repeated(whole, starts[-1], device),
                whole_cu_seqlens=to_device(whole_starts.astype(np.int32), device),
            ),
            shared_rows=_repeated(rows, starts[-1], device),
        )

    @property
    def sequences(self) -> int:
        return len(self.response_cu_seqlens) - 1


def _runs(sequences: Sequence[TokenPair], groups: np.ndarray | None) -> np.ndarray:
    """[N] int64, ascending from 0: numbers of the runs of sequences that share a prompt."""
    if groups is None:
        return np.arange(len(sequences))
    if len(groups) != len(sequences):
        raise ValueError(f"{len(groups)} group numbers for {len(sequences)} sequences")
    same = np.asarray(groups)[1:] == np.asarray(groups)[:-1]
    for row in np.flatnonzero(same):
        prompt, following = sequences[row][0], sequences[row + 1][0]
        if prompt is not following and not np.array_equal(prompt, following):
            raise ValueError(f"sequences {row} and {row + 1} are of group {groups[row]}, but their prompts differ")
    return np.concatenate([[0], np.cumsum(~same)])


def _lengths(sequences: Sequence[TokenPair]) -> tuple[np.ndarray, np.ndarray]:
    prompts = np.fromiter((len(prompt) for prompt, _ in sequences), np.int64, len(sequences))
    responses = np.fromiter((len(response) for _, response in sequences), np.int64, len(sequences))
    if not prompts.all():
        first = int(np.argmin(prompts))
        raise ValueError(f"sequence {first} has an empty prompt; one token, such as BOS, must stand before a response")
    return prompts, responses


def _cumulative(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _repeated(index: np.ndarray, sources: int, device: torch.device) -> Repeated:
    tables = Repeated.tables(index, sources)
    return Repeated(**{name: to_device(table, device) for name, table in tables.items()})


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """`array` as a tensor on `device`, without waiting for what the device is doing."""
    tensor = torch.from_numpy(array)
    # Only pinned memory is copied while the host goes on; torch keeps it alive until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
