"""Operators for reinforcement learning from verifiable rewards: a vocabulary projection that never holds the logits,
the clipped objectives of HACPO, GSPO and GRPO on packed sequences, and both in one pass. Needs torch, and triton on a
GPU."""

from __future__ import annotations

from .linear_logprob import linear_logprob
from .linear_policy_loss import linear_policy_loss
from .policy_loss import PolicyLossStats, policy_loss

__version__ = "0.1.0"

__all__ = ["PolicyLossStats", "__version__", "linear_logprob", "linear_policy_loss", "policy_loss"]
