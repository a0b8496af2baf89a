"""Which sequences go through the model together, where responses to a prompt may share one copy of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hacpo_fast.policy.batch import TokenPair, input_lengths
from hacpo_fast.policy.packing import pack

# The cost of sharing, in tokens that could go through the model meanwhile. What is around attention takes time by the
# token. Attention gains where prompts are long; where they are short it takes up to a fifth longer, since outputs are
# merged or inputs copied: a tenth of the tokens is more than that. And every shared prompt asks for calls of its own,
# which only the smallest models notice: for four layers of width 64 on a CPU they take as long as about 16 tokens.
PART_OF_TOKENS = 0.1
TOKENS_PER_PROMPT = 16


def worth_sharing(sequences: Sequence[TokenPair], groups: np.ndarray) -> bool:
    """Whether one copy of each prompt saves enough tokens to be faster; a function of lengths alone.

    groups: [N] integers, equal for sequences of the same prompt that can go through the model together.
    """
    if not len(sequences):
        return False
    prompts = np.array([len(prompt) for prompt, _ in sequences], dtype=np.int64)
    _, first, counts = np.unique(groups, return_index=True, return_counts=True)
    saved = prompts.sum() - prompts[first].sum()
    cost = PART_OF_TOKENS * input_lengths(sequences).sum() + TOKENS_PER_PROMPT * np.count_nonzero(counts > 1)
    return bool(saved > cost)


def micro_batches(sequences: Sequence[TokenPair], groups: np.ndarray | None, token_budget: int) -> list[np.ndarray]:
    """Distribute sequences over as few micro-batches as best-fit decreasing finds.

    With `groups`, what is packed is a prompt with all of its responses, of which a token is counted where it is read or
    predicted. A group above the budget is split into parts, each with a copy of the prompt.

    Args:
        sequences: N pairs of prompt and response.
        groups: [N] integers, equal for sequences that share one copy of their prompt; None: each brings its own.
        token_budget: largest number of tokens in a micro-batch, >= 1. What is longer by itself is alone in one.

    Returns:
        Indices of the sequences of each micro-batch, int64; every one is in exactly one. Those of a group follow each
        other, as `PackedBatch.build` wants them. The same input gives the same micro-batches.

    Raises:
        ValueError: an empty prompt or a budget below 1.
    """
    if groups is None or not len(sequences):
        return pack(input_lengths(sequences), token_budget)
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    part, costs = _parts(sequences, first, group, token_budget)
    bins = pack(costs, token_budget)
    bin_of_part = np.empty(len(costs), np.int64)
    bin_of_part[np.concatenate(bins)] = np.repeat(np.arange(len(bins)), [len(parts) for parts in bins])
    bin_of = bin_of_part[part]
    order = np.lexsort((group, bin_of))  # stable: by place within a group
    return np.split(order, np.cumsum(np.bincount(bin_of, minlength=len(bins)))[:-1])


def _parts(
    sequences: Sequence[TokenPair], first: np.ndarray, group: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    """The part of each sequence [N], and the tokens of each part. A group that fits into the budget is one part."""
    prompts = (input_lengths(sequences) - [max(len(response) - 1, 0) for _, response in sequences])[first]
    # All tokens of a response: one less is read, but the head holds a row for each.
    responses = np.array([len(response) for _, response in sequences], dtype=np.int64)
    costs = prompts + np.bincount(group, responses).astype(np.int64)
    part, split = group.copy(), []
    for large in np.flatnonzero(costs > budget):
        members = np.flatnonzero(group == large)
        pieces = pack(responses[members], max(1, budget - int(prompts[large])))
        for place, piece in enumerate(pieces):
            cost = prompts[large] + responses[members[piece]].sum()
            if place == 0:
                costs[large] = cost  # keeps the number of the group
            else:
                part[members[piece]] = len(costs) + len(split)
                split.append(cost)
    return part, np.concatenate([costs, np.array(split, dtype=np.int64)])
