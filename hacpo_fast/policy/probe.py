"""Does packing change what a model computes? Ask the model, before anything is trained.

An architecture can break packing in ways that no configuration tells: a recurrent layer carries its state from one
sequence into the next, a custom model numbers positions itself. Such a run would train, on wrong log-probs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.errors import UserError
from hacpo_fast.policy.attention import packed
from hacpo_fast.policy.batch import PackedBatch, TokenPair

if TYPE_CHECKING:
    from hacpo_fast.policy.policy import Policy

# Rounding error of a log-prob for logits of size 1. In 16 bits the model's own logits are rounded too.
TOLERANCE_16_BITS = {torch.bfloat16: 4e-2, torch.float16: 1e-2}
TOLERANCE_32_BITS = 1e-4
LENGTHS = ((5, 7), (1, 6), (9, 1), (3, 11), (2, 4))  # prompt, response


def check_packing(policy: Policy) -> float:
    """Compare packed log-probs of a few random sequences with the logits of the whole model for each one alone.

    Covers the trunk (leaks, positions, masks), the head as `Head` understood it, and gradient checkpointing.

    Returns:
        The largest absolute difference of a log-prob, in nats.

    Raises:
        UserError: it is above rounding error, or a layer's attention window is unknown to its attention function.
    """
    generator = np.random.default_rng(0)
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    sequences = [tuple(generator.integers(vocabulary, size=length) for length in pair) for pair in LENGTHS]
    batch = PackedBatch.build(sequences, policy.device)
    try:
        with packed() as windows:
            together = policy.token_logprobs(batch).detach()
    except ValueError as error:  # some of transformers' layers know that they cannot
        raise UserError(f"{policy.name} cannot be trained on packed sequences: {error}") from error
    if windows.lost:
        raise UserError(
            f"{policy.name} limits attention to windows of {sorted(windows.lost)} tokens in its mask only, "
            "which packed sequences cannot follow"
        )
    results = [_alone(policy, sequence) for sequence in sequences]
    alone = torch.cat([logprobs for logprobs, _ in results])
    error = (together - alone).abs().max().item()
    tolerance = TOLERANCE_16_BITS.get(policy.model.dtype, TOLERANCE_32_BITS) * max(1.0, *(size for _, size in results))
    if not error <= tolerance:  # NaN is not
        raise UserError(
            f"{policy.name} ({type(policy.model).__name__}) cannot be trained on packed sequences: a token's log-prob "
            f"changes by {error:.2g} nats, rounding explains {tolerance:.2g}. Likely causes: layers that mix across "
            "sequences (linear attention, state space, convolution), position ids that are ignored or numbered by the "
            "model itself, logits that are more than a linear projection of the last hidden state"
        )
    return error


@torch.no_grad()
def _alone(policy: Policy, sequence: TokenPair) -> tuple[Tensor, float]:
    """Log-probs [R] of the response, from the model's own logits, and the size of the largest logit."""
    prompt, response = (torch.from_numpy(ids).to(policy.device) for ids in sequence)
    ids = torch.cat([prompt, response[:-1]]).unsqueeze(0)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
    logprobs = logits.log_softmax(-1).gather(-1, response.unsqueeze(-1)).squeeze(-1)
    return logprobs, logits.abs().max().item()
