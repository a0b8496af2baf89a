"""Log-probs of given responses under a policy, without gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hacpo_fast.policy.batch import PackedBatch, TokenPair
from hacpo_fast.policy.micro_batches import micro_batches
from hacpo_fast.policy.policy import Policy
from hacpo_fast.run.phases import timed


@timed("score")
def score(
    policy: Policy,
    sequences: Sequence[TokenPair],
    temperature: float,
    token_budget: int,
    prompts: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Token log-probs ([L] float32) of each (prompt, response) at `temperature`, packed under `token_budget`.

    prompts: [N] integers, equal where the prompt is: then a policy that shares prompts reads each once.
    """
    scores: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    groups = None if prompts is None else policy.groups(sequences, prompts)
    for rows in micro_batches(sequences, groups, token_budget):
        chosen = [sequences[row] for row in rows]
        batch = PackedBatch.build(chosen, policy.device, None if groups is None else groups[rows])
        logprobs = policy.score(batch, temperature).cpu().numpy()
        for row, part in zip(rows, np.split(logprobs, batch.response_cu_seqlens[1:-1].tolist()), strict=True):
            scores[row] = part
    return scores
