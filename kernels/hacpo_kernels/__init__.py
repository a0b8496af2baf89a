"""Operators for reinforcement learning from verifiable rewards: a vocabulary projection that never holds the logits,
and the clipped objectives of HACPO, GSPO and GRPO on packed sequences. Needs torch only."""

from __future__ import annotations

from .linear_logprob import linear_logprob
from .policy_loss import PolicyLossStats, policy_loss

__version__ = "0.1.0"

__all__ = ["PolicyLossStats", "__version__", "linear_logprob", "policy_loss"]
