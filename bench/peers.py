"""What the operators are compared with. Every benchmark takes its peers from here; absent ones are named in the output.

An entry of `LOGPROB` computes logprobs [T] of targets from hidden [T, H] and weight [V, H]; one of `POLICY` or of
`LINEAR_POLICY` the scalar GSPO loss of responses of equal length. Where peers cannot do all that ours do (see
kernels/README.md), they do less, and the comparison favours them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from hacpo_kernels import linear_logprob, linear_policy_loss, policy_loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLIP = {"own_clip_low": 0.2, "own_clip_high": 0.2}


def plain_logprob(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Materialised logits, float32 softmax."""
    return -torch.nn.functional.cross_entropy((hidden @ weight.T).float(), targets, reduction="none")


def plain_policy(logprobs: Tensor, lengths: list[int], source: Tensor, advantages: Tensor) -> Tensor:
    means = torch.stack([part.mean() for part in logprobs.split(lengths)])
    ratio = (means - source).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


def ours_policy(
    logprobs: Tensor, lengths: list[int], source: Tensor, advantages: Tensor, backend: str = "auto"
) -> Tensor:
    return policy_loss(logprobs, *_columns(lengths, source, advantages), **CLIP, backend=backend)[0]


def _columns(lengths: list[int], source: Tensor, advantages: Tensor) -> tuple[Tensor, ...]:
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(source.device)
    return boundaries, source, advantages, torch.ones_like(source, dtype=torch.bool), torch.ones_like(source)


def two_operators(hidden, weight, targets, lengths, source, advantages) -> Tensor:
    return ours_policy(linear_logprob(hidden, weight, targets), lengths, source, advantages)


def one_operator(hidden, weight, targets, lengths, source, advantages) -> Tensor:
    return linear_policy_loss(hidden, weight, targets, *_columns(lengths, source, advantages), **CLIP)[0]


def plain_linear_policy(hidden, weight, targets, lengths, source, advantages) -> Tensor:
    return plain_policy(plain_logprob(hidden, weight, targets), lengths, source, advantages)


def liger_logprob(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return -LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, targets)


def liger_grpo(hidden, weight, targets, lengths, source, advantages, compiled=True) -> Tensor:
    """Sequence-level ratios on padded batches; the responses here are of equal length, so nothing is padding."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    count, length = len(lengths), lengths[0]
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=compiled, use_ref_model=False, loss_type="grpo", importance_sampling_level="sequence"
    )
    old = source[:, None].expand(count, length)  # only its mean over the sequence matters
    return loss(
        hidden.view(count, length, -1), weight, targets.view(count, length),
        torch.ones(count, length, device=hidden.device), advantages, old_per_token_logps=old,
    )[0]  # fmt: skip


def cut_cross_entropy_logprob(hidden: Tensor, weight: Tensor, targets: Tensor, impl: str) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(hidden, weight, targets, reduction="none", impl=impl)


@contextmanager
def chosen_route(name: str) -> Iterator[None]:
    """Inside, the Triton backend takes the route that the entry `name` asks for, where chip and dtypes allow it."""
    if name not in ROUTES:
        yield
        return
    from unittest import mock

    from hacpo_kernels.triton import table

    choose = table.plan

    def plan(kind, hidden, weight):
        chosen = choose(kind, hidden[:, : table.FUSED_UP_TO_WIDTH], weight[:, : table.FUSED_UP_TO_WIDTH])
        return chosen._replace(route="products") if ROUTES[name] == "products" else chosen

    with mock.patch.object(table, "plan", plan):
        yield


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


LOGPROB: dict[str, Callable[..., Tensor]] = {"hacpo_kernels": linear_logprob, "plain torch": plain_logprob}
POLICY: dict[str, Callable[..., Tensor]] = {"hacpo_kernels": ours_policy, "plain torch": plain_policy}
LINEAR_POLICY: dict[str, Callable[..., Tensor]] = {
    "hacpo_kernels": one_operator,
    "hacpo_kernels, two operators": two_operators,
    "plain torch": plain_linear_policy,
}
ROUTES = {"hacpo_kernels, fused route": "fused", "hacpo_kernels, products route": "products"}
ABSENT: dict[str, str] = {}

if DEVICE == "cuda":
    LOGPROB["hacpo_kernels, torch backend"] = partial(linear_logprob, backend="torch")
    LOGPROB |= dict.fromkeys(ROUTES, linear_logprob)
    POLICY["hacpo_kernels, torch backend"] = partial(ours_policy, backend="torch")
if _installed("liger_kernel"):
    LINEAR_POLICY["liger chunked GRPO"] = partial(liger_grpo, compiled=DEVICE == "cuda")
    if DEVICE == "cuda":
        LOGPROB["liger fused linear CE"] = liger_logprob
    else:
        ABSENT["liger fused linear CE"] = "needs a GPU"
else:
    ABSENT["liger-kernel"] = "not installed"
if _installed("cut_cross_entropy"):
    LOGPROB["cut-cross-entropy"] = partial(
        cut_cross_entropy_logprob, impl="cce" if DEVICE == "cuda" else "torch_compile"
    )
else:
    ABSENT["cut-cross-entropy"] = "not installed"
