"""How a policy's weights get into its vLLM engine: the best way that passes the probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hacpo_fast.engine_probe import ProbeFailure, probe
from hacpo_fast.errors import UserError
from hacpo_fast.policy.engine_views import UnknownLayout, differing, engine_views
from hacpo_fast.policy.policy import Policy
from hacpo_fast.policy.weight_sync import CopiedWeights, ReloadedWeights, SharedWeights, WeightSync, checkpoint_weights
from hacpo_fast.rollouts.vllm_engine import VllmEngine

WAYS = ("shared", "copy", "reload")


class Connection(NamedTuple):
    way: str  # one of WAYS
    mismatch: float  # nats per token that the probe found
    rejected: Sequence[str]  # better ways, each with the reason against it


def connect(policy: Policy, engine: VllmEngine, weights: str, temperature: float, max_mismatch: float) -> Connection:
    """Give the engine the policy's weights, and a way to follow them, by `weights`: one of WAYS, or auto.

    Raises:
        UserError: no way is possible, or passes the probe.
    """
    rejected: list[str] = []
    for way in WAYS if weights == "auto" else (weights,):
        sync = None
        try:
            sync = engine.synchronise = _prepare(way, policy, engine)
            return Connection(way, probe(policy, engine, temperature, max_mismatch), rejected)
        except (UnknownLayout, ProbeFailure) as reason:
            rejected.append(f"{way}: {reason}")
            if sync is not None:
                sync.release()
    raise UserError(
        f"{policy.name}: its weights cannot be kept the same in vLLM (rollout.weights={weights}). "
        + "; ".join(rejected)
        + ". Use rollout.engine=transformers, or raise rollout.max_mismatch if 16-bit rounding is the reason"
    )


def _prepare(way: str, policy: Policy, engine: VllmEngine) -> WeightSync:
    if way == "reload":
        sync = ReloadedWeights(policy.model, engine.module, engine.reload)
        _try(sync)
        return sync
    if way == "shared" and policy.model.dtype != engine.settings.dtype:
        raise UnknownLayout(f"the policy is {policy.model.dtype}, the engine {engine.settings.dtype}")
    views = engine_views(policy.model, engine.module)
    # vLLM's own mapping says which values belong where; the views must agree with it in every number.
    _try(lambda: engine.load(checkpoint_weights(policy.model, engine.module)))
    if wrong := differing(policy.model, views):
        raise UnknownLayout(f"{len(wrong)} tensors, {wrong[0]} first, lie elsewhere in the engine")
    return (SharedWeights if way == "shared" else CopiedWeights)(policy.model, views)


def _try(load: Callable[[], None]) -> None:
    try:
        load()
    except Exception as error:  # as many kinds as vLLM has models
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UnknownLayout(f"vLLM's loading failed: {reason[0][:200]}") from error
