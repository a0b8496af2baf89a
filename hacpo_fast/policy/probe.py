"""Does packing change what a model computes, do shared prompts? Ask the model, before anything is trained.

An architecture can break packing in ways that no configuration tells: a recurrent layer carries its state from one
sequence into the next, a custom model numbers positions itself. Such a run would train, on wrong log-probs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.errors import UserError
from hacpo_fast.policy.attention import HACPO_VARLEN, packed
from hacpo_fast.policy.batch import PackedBatch, TokenPair

if TYPE_CHECKING:
    from hacpo_fast.policy.policy import Policy

# Rounding error of a log-prob for logits of size 1. In 16 bits the model's own logits are rounded too.
TOLERANCE_16_BITS = {torch.bfloat16: 4e-2, torch.float16: 1e-2}
TOLERANCE_32_BITS = 1e-4
# Of a token's gradient, as a part of its size.
GRADIENT_16_BITS = {torch.bfloat16: 0.2, torch.float16: 0.1}
GRADIENT_32_BITS = 1e-3
LENGTHS = ((5, 7), (1, 6), (9, 1), (3, 11), (2, 4))  # prompt, response
SHARED_LENGTHS = ((6, (7, 1, 4)), (1, (5, 3)), (9, (3,)), (4, (2, 11)))  # prompt, its responses


def check_packing(policy: Policy) -> float:
    """Compare packed log-probs of a few random sequences with the logits of the whole model for each one alone.

    Covers the trunk (leaks, positions, masks), the head as `Head` understood it, and gradient checkpointing.

    Returns:
        The largest absolute difference of a log-prob, in nats.

    Raises:
        UserError: it is above rounding error, or a layer's attention window is unknown to its attention function.
    """
    draw = _random_ids(policy)
    sequences = [(draw(prompt), draw(response)) for prompt, response in LENGTHS]
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
    error, tolerance = _difference(policy, sequences, together)
    if not error <= tolerance:  # NaN is not
        raise UserError(
            f"{policy.name} ({type(policy.model).__name__}) cannot be trained on packed sequences: a token's log-prob "
            f"changes by {error:.2g} nats, rounding explains {tolerance:.2g}. Likely causes: layers that mix across "
            "sequences (linear attention, state space, convolution), position ids that are ignored or numbered by the "
            "model itself, logits that are more than a linear projection of the last hidden state"
        )
    return error


def check_sharing(policy: Policy) -> float:
    """The same question for prompts that their responses share, whose attention computes its gradient by itself.

    Compares log-probs, and the gradient that reaches the embedded tokens, with those of each sequence alone.

    Returns:
        The largest absolute difference of a log-prob, in nats.

    Raises:
        UserError: log-probs or gradients differ by more than rounding, or the model cannot compute them at all.
    """
    implementation = policy.model.config._attn_implementation
    if implementation != HACPO_VARLEN:
        raise UserError(f"its attention is {implementation}, which knows nothing of shared prompts")
    draw = _random_ids(policy)
    sequences, groups = [], []
    for group, (length, responses) in enumerate(SHARED_LENGTHS):
        prompt = draw(length)
        sequences += [(prompt, draw(response)) for response in responses]
        groups += [group] * len(responses)
    batch = PackedBatch.build(sequences, policy.device, np.array(groups))
    try:
        together, (gradient,) = _with_gradient(policy, [batch])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a layer makes of an argument or a layout that it does not know
        raise UserError(f"its layers cannot read shared prompts: {type(error).__name__}: {error}") from error
    error, tolerance = _difference(policy, sequences, together)
    if not error <= tolerance:
        raise UserError(
            f"a token's log-prob changes by {error:.2g} nats when prompts are shared, rounding explains {tolerance:.2g}"
        )
    _, expected = _with_gradient(policy, [PackedBatch.build([sequence], policy.device) for sequence in sequences])
    expected = batch.shared.whole.sums(torch.cat(expected).float())
    deviation = ((gradient.float() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-30)).mean().item()
    limit = GRADIENT_16_BITS.get(policy.model.dtype, GRADIENT_32_BITS)
    if not deviation <= limit:
        raise UserError(
            f"a token's gradient changes by {deviation:.1%} on average when prompts are shared, "
            f"rounding explains {limit:.1%}"
        )
    return error


def _random_ids(policy: Policy) -> Callable[[int], np.ndarray]:
    generator = np.random.default_rng(0)
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    return lambda length: generator.integers(vocabulary, size=length)


def _difference(policy: Policy, sequences: Sequence[TokenPair], together: Tensor) -> tuple[float, float]:
    """Largest difference of a log-prob from each sequence alone, and what rounding explains."""
    results = [_alone(policy, sequence) for sequence in sequences]
    alone = torch.cat([logprobs for logprobs, _ in results])
    scale = max(1.0, *(size for _, size in results))
    tolerance = TOLERANCE_16_BITS.get(policy.model.dtype, TOLERANCE_32_BITS) * scale
    return (together - alone).abs().max().item(), tolerance


def _with_gradient(policy: Policy, batches: list[PackedBatch]) -> tuple[Tensor, list[Tensor]]:
    """Log-probs [R], and the gradient of a weighted sum of them with respect to each batch's embedded tokens [T, H]."""
    embedded = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda *call: embedded.append(call[-1]))
    try:
        logprobs = torch.cat([policy.token_logprobs(batch) for batch in batches])
    finally:
        hook.remove()
    weights = torch.linspace(-1, 2, len(logprobs), device=logprobs.device)
    gradients = torch.autograd.grad((logprobs * weights).sum(), embedded)
    return logprobs.detach(), [gradient[0] for gradient in gradients]


@torch.no_grad()
def _alone(policy: Policy, sequence: TokenPair) -> tuple[Tensor, float]:
    """Log-probs [L] of the response, from the model's own logits, and the size of the largest logit."""
    prompt, response = (torch.from_numpy(ids).to(policy.device) for ids in sequence)
    ids = torch.cat([prompt, response[:-1]]).unsqueeze(0)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
    logprobs = logits.log_softmax(-1).gather(-1, response.unsqueeze(-1)).squeeze(-1)
    return logprobs, logits.abs().max().item()
