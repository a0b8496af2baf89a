"""Log-probs of given responses under a policy, without gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hacpo_fast.policy.batch import PackedBatch, TokenPair, input_lengths
from hacpo_fast.policy.packing import pack
from hacpo_fast.policy.policy import Policy
from hacpo_fast.run.phases import timed


@timed("score")
def score(policy: Policy, sequences: Sequence[TokenPair], temperature: float, token_budget: int) -> list[np.ndarray]:
    """Token log-probs ([L] float32) of each (prompt, response) at `temperature`, packed under `token_budget`."""
    scores: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    for rows in pack(input_lengths(sequences), token_budget):
        batch = PackedBatch.build([sequences[row] for row in rows], policy.device)
        logprobs = policy.score(batch, temperature).cpu().numpy()
        for row, part in zip(rows, np.split(logprobs, batch.response_cu_seqlens[1:-1].tolist()), strict=True):
            scores[row] = part
    return scores
