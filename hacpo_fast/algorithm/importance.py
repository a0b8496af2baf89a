"""Truncated importance weights between a policy and the engine that sampled for it.

An engine of lower precision samples from q, a little off the policy p of the same weights. A response weighted by p/q
counts as if p had sampled it; truncated at a cap C, the weights cost some bias and keep the variance bounded (the idea
is that of arXiv 1802.01561). With them the denominators of all ratios are p's, so that clipping, which is far narrower
than the engine's rounding, is not spent on it.

sequence: w = min(prod over tokens of p/q, C). It multiplies the advantage of the response for every learner, since it
belongs to the response and not to who reads it: J becomes w * J, own and cross.
token: w_t = min(p_t/q_t, C). It multiplies what token t adds to the gradient of the own objective; values, ratios and
clipping are as without. Other agents' responses are in other tokens there, and keep the weight 1.
"""

from __future__ import annotations

import numpy as np

LARGEST = 20.0  # of a log-weight: beyond any cap, and no overflow


def sequence_weight(policy_logprobs: np.ndarray, engine_logprobs: np.ndarray, cap: float) -> float:
    """w of a response, from its tokens' log-probs [L] under both."""
    difference = np.sum(policy_logprobs - engine_logprobs, dtype=np.float64)
    return float(min(np.exp(min(difference, LARGEST)), cap))


def token_weights(policy_logprobs: np.ndarray, engine_logprobs: np.ndarray, cap: float) -> np.ndarray:
    """[L] float32: w_t of every token."""
    return np.minimum(np.exp(np.minimum(policy_logprobs - engine_logprobs, LARGEST)), cap).astype(np.float32)
