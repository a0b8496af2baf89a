"""policy_loss: golden cases, the reference, the shape of each clip, and packed sequences at their edges."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import DEFAULTS, batch, run
from torch._subclasses.fake_tensor import FakeTensorMode

from hacpo_kernels import PolicyLossStats, policy_loss
from hacpo_kernels.arguments import Responses
from hacpo_kernels.policy_loss import _forward as forward_op
from hacpo_kernels.torch import policy_loss as torch_backend

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "hacpo_step.json").read_text())
CASES = {
    f"case {number} {name}": learner for number, case in enumerate(GOLDEN) for name, learner in case["learners"].items()
}
FLOATS = ("mean_logprob", "log_ratio", "ratio", "objective")


def one(log_ratio, advantage, **options):
    """(objective, d objective / d log_ratio, stats) of a single three-token response."""
    own, capability = options.pop("own", True), options.pop("capability", 1.0)
    _, stats, grad = run(batch([3], [log_ratio], [advantage], own=own, capability=capability), **options)
    assert torch.equal(grad, grad[:1].expand(3))
    return stats.objective.item(), -grad.sum().item(), stats


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", CASES)
def test_golden(name, dtype, tolerance, backend):
    case = CASES[name]
    settings_, expected = case["params"], case["expected"]
    loss, stats, grad = run(
        (
            torch.tensor(case["token_logprobs"], dtype=dtype),
            torch.tensor(case["cu_seqlens"], dtype=torch.int32),
            torch.tensor(case["source_mean_logprob"], dtype=dtype),
            torch.tensor(case["advantage"], dtype=dtype),
            torch.tensor(case["is_self"]),
            torch.tensor(case["omega_source_over_learner"], dtype=dtype),
        ),
        own_clip_low=settings_["self_clip_low"],
        own_clip_high=settings_["self_clip_high"],
        cross_clip_lower=expected["cross_clip_lower"],
        alpha=settings_["alpha"],
        backend=backend,
    )
    assert loss.dtype == grad.dtype == stats.ratio.dtype == dtype
    actual = {"loss": loss, "grad_token_logprobs": grad} | stats._asdict()
    for key in ("loss", "mean_logprob", "ratio", "objective", "grad_token_logprobs"):
        wanted = torch.tensor(expected[key], dtype=torch.float64)
        torch.testing.assert_close(actual[key].double(), wanted, rtol=0, atol=tolerance)
    live = torch.tensor([part.any().item() for part in grad.split(torch.tensor(case["cu_seqlens"]).diff().tolist())])
    assert torch.equal(stats.live, live)


sequence = st.fixed_dictionaries(
    {
        "length": st.sampled_from([0, 0, 1, 2, 3, 7, 31]),
        # On and off either side of every bound, never on one: there the derivative is a matter of convention.
        "log_ratio": st.sampled_from(
            [0.0, 1e-4, -1e-4, 0.01, -0.01, -0.1, 0.3, -0.3, 9.9, -9.9, 10.1, -10.1, 1e4, -1e4]
        ),
        "advantage": st.sampled_from([-1.3, -0.2, 0.0, 0.4, 2.0]),
        "own": st.booleans(),
        "capability": st.sampled_from([0.0, 0.1, 0.8, 3.0]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(sequence, max_size=9),
    alpha=st.sampled_from([0.0, 1.0, 3.0]),
    cross_clip=st.sampled_from([(0.8, 1.0), (0.95, 1.05), (0.0, math.inf)]),
    level=st.sampled_from(["sequence", "token"]),
    denominator=st.sampled_from([None, 12.5]),
    seed=st.integers(0, 99),
)
def test_equals_reference(sequences, alpha, cross_clip, level, denominator, seed):
    lengths, log_ratios, advantages, own, capability = (
        [entry[key] for entry in sequences] for key in ("length", "log_ratio", "advantage", "own", "capability")
    )
    if level == "token":
        own = [True] * len(own)
    arguments = batch(lengths, log_ratios, advantages, own=own, capability=capability, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    source = arguments[0] - 0.5 * torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    options = {
        "alpha": alpha,
        "cross_clip_lower": cross_clip[0],
        "cross_clip_upper": cross_clip[1],
        "level": level,
        "denominator": denominator,
        "source_token_logprobs": source,
    }
    loss, stats, grad = run(arguments, **options)
    expected_loss, expected_stats, expected_grad = run(arguments, **options, backend="reference")
    for actual, expected in ((loss, expected_loss), (grad, expected_grad), *zip(stats, expected_stats, strict=True)):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    assert loss.isfinite() and grad.isfinite().all()


@pytest.mark.parametrize("level", ["sequence", "token"])
@pytest.mark.parametrize("own", [True, [True, False, False, True]])
def test_gradcheck(level, own):
    """alpha = 0, since the constant factor of alpha > 0 is invisible to finite differences."""
    if level == "token":
        own = True
    arguments = batch([3, 0, 5, 1], [0.05, 0.0, -0.1, 0.2], [1.0, 1.0, -2.0, 0.5], own=own, capability=0.7)
    source = arguments[0] + 0.1 * torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(token_logprobs):
        wide = {"own_clip_low": 0.9, "own_clip_high": 2.0, "cross_clip_lower": 0.0, "cross_clip_upper": math.inf}
        return policy_loss(
            token_logprobs, *arguments[1:], level=level, alpha=0.0, source_token_logprobs=source, **wide
        )[0]

    assert torch.autograd.gradcheck(loss, arguments[0].requires_grad_())


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "factor", "live"),
    [
        (0.0, 2.0, 1.0, True),
        (0.0, -2.0, 1.0, True),
        (0.3, 2.0, 1.2, False),  # above the range, pushed up: clipped
        (0.3, -2.0, math.exp(0.3), True),  # above the range, pushed down: the minimum is the raw term
        (-0.3, 2.0, math.exp(-0.3), True),
        (-0.3, -2.0, 0.9, False),
        (0.3, 0.0, 0.0, False),
    ],
)
def test_own_clip(log_ratio, advantage, factor, live):
    value, slope, stats = one(log_ratio, advantage, own_clip_low=0.1, own_clip_high=0.2, capability=5.0)
    assert value == pytest.approx(factor * advantage)  # the capability ratio is ignored
    assert slope == pytest.approx(factor * advantage if live else 0.0)
    assert stats.live.item() == live
    assert stats.clipped_high.item() == (log_ratio > 0 and advantage > 0)
    assert stats.clipped_low.item() == (log_ratio < 0 and advantage < 0)
    assert stats.ratio.item() == pytest.approx(math.exp(log_ratio))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(
    ("log_ratio", "clipped", "live"), [(-0.1, math.exp(-0.1), True), (-0.3, 0.8, False), (0.1, 1.0, False)]
)
def test_cross_clip(log_ratio, clipped, live, alpha, advantage):
    value, slope, stats = one(log_ratio, advantage, own=False, alpha=alpha, capability=0.5)
    assert value == pytest.approx(clipped * clipped**alpha * 0.5 * advantage)
    # The factor c^alpha is a constant: the slope has no (1 + alpha).
    assert slope == (pytest.approx(value) if live else 0.0)
    assert (stats.live.item(), stats.clipped_low.item(), stats.clipped_high.item()) == (
        live,
        log_ratio == -0.3,
        log_ratio == 0.1,
    )


def test_cross_without_clip():
    value, slope, stats = one(2.0, -1.0, own=False, cross_clip_lower=0.0, cross_clip_upper=math.inf)
    assert value == pytest.approx(-math.exp(4.0)) and slope == pytest.approx(value)
    assert stats.live.item() and not stats.clipped_low.item() and not stats.clipped_high.item()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("log_ratio", [1e4, -1e4, 3e38, -3e38, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_very_large_log_ratios(log_ratio, advantage, own, dtype):
    arguments = batch([2, 3], [log_ratio, 0.0], [advantage, 1.0], own=own, dtype=dtype)
    loss, stats, grad = run(arguments, cross_clip_lower=0.0, cross_clip_upper=math.inf)
    assert loss.isfinite() and grad.isfinite().all() and not grad[:2].any() and grad[2:].all()
    torch.testing.assert_close(stats.ratio[0], torch.tensor(math.copysign(10.0, log_ratio), dtype=dtype).exp())
    assert abs(stats.log_ratio[0]) >= 1e4


@pytest.mark.parametrize("own", [True, False])
def test_overflow_without_a_clamp_stays_out_of_sequences_without_a_signal(own):
    arguments = batch([2, 3], [1e4, 0.0], [0.0, 1.0], own=own)
    loss, stats, grad = run(arguments, log_ratio_clamp=math.inf, cross_clip_lower=0.0, cross_clip_upper=math.inf)
    assert stats.ratio[0].isinf() and stats.objective[0] == 0
    assert loss.item() == pytest.approx(-0.5) and grad[2:].all() and not grad[:2].any()


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("level", ["sequence", "token"])
@pytest.mark.parametrize("empty", [0, 1, 2, 3])
def test_empty_sequences(empty, level, backend):
    """At the start, in the middle, at the end: nothing but a place in the denominator, even with NaN beside it."""
    lengths, ratios, advantages = [3, 2, 4], [1e-5, -1e-5, 0.0], [1.0, -2.0, 3.0]
    options = {"level": level, "backend": backend}
    full = batch(lengths, ratios, advantages)
    loss, stats, grad = run(full, **options, denominator=4.0, source_token_logprobs=full[0] - 1e-5)
    for values, value in ((lengths, 0), (ratios, 0.0), (advantages, 5.0)):
        values.insert(empty, value)
    with_empty = batch(lengths, ratios, advantages)
    assert torch.equal(with_empty[0], full[0])
    with_empty[2][empty] = float("nan")
    loss_, stats_, grad_ = run(with_empty, **options, source_token_logprobs=full[0] - 1e-5)
    torch.testing.assert_close(loss_, loss)
    torch.testing.assert_close(grad_, grad)
    kept = [n for n in range(4) if n != empty]
    for with_, without in zip(stats_, stats, strict=True):
        torch.testing.assert_close(with_[kept], without)
    assert [field[empty].item() for field in stats_] == [0.0, 0.0, 1.0, 0.0, False, False, False]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_nothing_at_all(lengths, backend):
    count = len(lengths)
    loss, stats, grad = run(batch(lengths, [0.0] * count, [1.0] * count), backend=backend)
    assert loss == 0 and grad.shape == (0,)
    assert all(field.shape == (count,) for field in stats)


def test_all_sequences_masked():
    loss, stats, grad = run(batch([3, 2], [0.5, -0.5], [1.0, -1.0], own=False))
    assert not grad.any() and not stats.live.any() and loss.isfinite()


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_length_does_not_weight(level):
    """Each token repeated a hundred times in one response: same loss, same gradient per response."""
    token_logprobs, _, source, advantages, own, capability = batch([2, 3], [1e-5, -1e-5], [1.0, -3.0])
    results = []
    for repeat in (1, 100):
        long = torch.cat([token_logprobs[:2], token_logprobs[2:].repeat(repeat)])
        arguments = (long, torch.tensor([0, 2, 2 + 3 * repeat]), source, advantages, own, capability)
        loss, _, grad = run(arguments, level=level, source_token_logprobs=long - 1e-5)
        results.append(torch.stack([loss, grad[:2].sum(), grad[2:].sum()]))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_micro_batches_add_up(level):
    lengths, own = [3, 1, 0, 4, 2, 6], [True, False, True, False, True, False]
    own = True if level == "token" else own
    ratios, advantages = [0.0, -0.1, 0.0, -0.05, 1e-4, 0.2], [1.0, 2.0, 3.0, -1.0, -2.0, 0.5]
    arguments = batch(lengths, ratios, advantages, own=own, capability=[1.0, 0.5, 1.0, 2.0, 1.0, 0.7])
    source = arguments[0] + 1e-4
    loss, _, grad = run(arguments, level=level, source_token_logprobs=source)
    for size in (1, 2, 4):
        losses, grads = [], []
        for first in range(0, 6, size):
            last = min(first + size, 6)
            start, stop = arguments[1][first].item(), arguments[1][last].item()
            micro = (
                arguments[0][start:stop],
                arguments[1][first : last + 1] - start,
                *(tensor[first:last] for tensor in arguments[2:]),
            )
            part = run(micro, level=level, denominator=6.0, source_token_logprobs=source[start:stop])
            losses.append(part[0])
            grads.append(part[2])
        torch.testing.assert_close(sum(losses), loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.cat(grads), grad, rtol=1e-12, atol=1e-12)


def test_token_level_is_grpo():
    logprobs = torch.tensor([-1.0, -1.0, -1.0, -1.0, -2.0], dtype=torch.float64)
    log_ratios = torch.tensor([0.0, 0.5, -0.5, 20.0, 0.1], dtype=torch.float64)
    arguments = (
        logprobs,
        torch.tensor([0, 4, 5]),
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([2.0, -1.0], dtype=torch.float64),
        torch.tensor([True, True]),
        torch.ones(2, dtype=torch.float64),
    )
    options = {"level": "token", "own_clip_low": 0.2, "own_clip_high": 0.28}
    _, stats, grad = run(arguments, source_token_logprobs=logprobs - log_ratios, **options)
    first = 2.0 * (1.0 + 1.28 + math.exp(-0.5) + 1.28) / 4
    assert stats.objective.tolist() == pytest.approx([first, -math.exp(0.1)])
    expected = [-2.0 / 4 / 2, 0.0, -2.0 * math.exp(-0.5) / 4 / 2, 0.0, math.exp(0.1) / 2]
    assert grad.tolist() == pytest.approx(expected)
    assert stats.clipped_high.tolist() == [True, False] and stats.live.tolist() == [True, True]


def test_on_policy_ratio_is_exactly_one():
    """The first update of a step, in float32, for a response as long as they get: far inside the own clip."""
    logprobs = -torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    source = logprobs.double().mean().float()[None]
    one_ = torch.ones(1)
    arguments = (logprobs, torch.tensor([0, 200_000]), source, one_, torch.tensor([True]), one_)
    _, stats, _ = run(arguments)
    assert stats.ratio.item() == 1.0 and stats.live.item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dtypes(dtype):
    arguments = batch([30, 50], [1e-4, -1e-4], [1.0, -1.0], dtype=dtype)
    loss, stats, grad = run(arguments, own_clip_low=0.2, own_clip_high=0.2)
    exact = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in arguments)
    expected_loss, _, expected_grad = run(exact, own_clip_low=0.2, own_clip_high=0.2)
    assert loss.dtype == torch.float32 and all(getattr(stats, name).dtype == torch.float32 for name in FLOATS)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=0, atol=1e-6)
    assert grad.dtype == dtype
    tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-6}[dtype]
    torch.testing.assert_close(grad.double(), expected_grad, rtol=tolerance, atol=0)


def test_stats_are_detached_and_results_repeatable():
    arguments = batch([3, 2], [1e-4, -0.1], [1.0, -1.0], own=[True, False])
    loss, stats, grad = run(arguments)
    assert isinstance(stats, PolicyLossStats) and not any(field.requires_grad for field in stats)
    again = run(arguments)
    assert torch.equal(loss, again[0]) and torch.equal(grad, again[2])


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_strided_inputs(level):
    arguments = batch([5, 0, 3], [1e-4, 0.0, -1e-4], [1.0, 1.0, -2.0])
    others = (tensor.logical_not().to(tensor.dtype) for tensor in arguments)
    strided = tuple(torch.stack(pair, 1)[:, 0] for pair in zip(arguments, others, strict=True))
    assert not any(tensor.is_contiguous() for tensor in strided)
    plain, other = (
        run(tensors, level=level, source_token_logprobs=tensors[0] - 1e-4) for tensors in (arguments, strided)
    )
    assert torch.equal(plain[0], other[0]) and torch.equal(plain[2], other[2]) and plain[2].any()


def test_gradient_scales_with_the_upstream_gradient():
    arguments = batch([3, 2], [1e-4, -0.1], [1.0, -1.0], own=[True, False])
    _, _, grad = run(arguments)
    token_logprobs = arguments[0].requires_grad_()
    (3 * policy_loss(token_logprobs, *arguments[1:])[0]).backward()
    torch.testing.assert_close(token_logprobs.grad, 3 * grad)


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_backend_never_waits_for_the_device(level):
    """Fake tensors have no values: whatever asked for one on the host would raise."""
    with FakeTensorMode():
        responses = Responses(
            cu_seqlens=torch.empty(5, dtype=torch.int32),
            source_mean_logprobs=torch.empty(4),
            advantages=torch.empty(4),
            is_own=torch.empty(4, dtype=torch.bool),
            capability_ratio=torch.empty(4),
            source_token_logprobs=torch.empty(20) if level == "token" else None,
        )
        results = torch_backend.forward(torch.empty(20), responses, DEFAULTS)
    assert [result.shape for result in results] == [(), (20,), *[(4,)] * 7]


def test_cross_response_at_token_level_is_nan_where_it_cannot_be_checked():
    arguments = batch([3, 2], [0.0, 0.0], [1.0, 1.0], own=[True, False])
    loss, *_ = torch_backend.forward(arguments[0], Responses(*arguments[1:], arguments[0]), DEFAULTS)
    assert loss.isnan()


def test_double_backward_is_refused():
    arguments = batch([3, 2], [1e-5, -0.1], [1.0, -1.0], own=[True, False])
    token_logprobs = arguments[0].requires_grad_()
    (grad,) = torch.autograd.grad(policy_loss(token_logprobs, *arguments[1:])[0], token_logprobs, create_graph=True)
    with pytest.raises(RuntimeError, match="policy_loss has no double backward"):
        grad.sum().backward()


def test_compile():
    def total(token_logprobs, *rest):
        loss, stats = policy_loss(2 * token_logprobs, *rest)
        return loss + stats.ratio.sum()

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([3, 2, 4], [1, 0, 5, 2], [2, 2]):
        count = len(lengths)
        arguments = batch(lengths, [-0.1] * count, [1.0] * count, own=[n % 2 == 0 for n in range(count)])
        grads = []
        for function in (total, compiled):
            token_logprobs = arguments[0].detach().requires_grad_()
            function(token_logprobs, *arguments[1:]).backward()
            grads.append(token_logprobs.grad)
        torch.testing.assert_close(*grads)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # no recompilation per batch size


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_custom_operator_contract(level):
    arguments = batch([3, 0, 2], [1e-5, 0.0, -0.1], [1.0, 1.0, -1.0], own=True)
    arguments[0].requires_grad_()
    source = arguments[0].detach() + 0.1 if level == "token" else None
    torch.library.opcheck(forward_op, (*arguments, source, [0.1, 0.2, 0.8, 1.0, 1.0, 10.0], 3.0, "torch"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"token_logprobs": torch.zeros(5, 1)}, ValueError, r"token_logprobs must have shape \[any\]"),
        ({"token_logprobs": torch.zeros(5, dtype=torch.long)}, TypeError, "token_logprobs must have a floating-point"),
        ({"cu_seqlens": torch.tensor([0.0, 3.0, 5.0])}, TypeError, "cu_seqlens must have an integer dtype"),
        ({"cu_seqlens": torch.tensor([], dtype=torch.long)}, ValueError, "cu_seqlens is empty"),
        ({"cu_seqlens": torch.tensor([1, 3, 5])}, ValueError, "cu_seqlens must start at 0, got 1"),
        ({"cu_seqlens": torch.tensor([0, 3, 4])}, ValueError, "cu_seqlens must end at the number of tokens 5, got 4"),
        ({"cu_seqlens": torch.tensor([0, 6, 5])}, ValueError, "cu_seqlens must not decrease"),
        ({"cu_seqlens": torch.tensor([0, 200, 5], dtype=torch.uint8)}, ValueError, "cu_seqlens must not decrease"),
        ({"cu_seqlens": torch.tensor([0, 5])}, ValueError, r"source_mean_logprobs must have shape \[1\], got \[2\]"),
        ({"advantages": torch.zeros(3)}, ValueError, r"advantages must have shape \[2\], got \[3\]"),
        ({"capability_ratio": torch.ones(2, dtype=torch.long)}, TypeError, "capability_ratio must have a floating"),
        ({"is_own": torch.ones(2)}, TypeError, "is_own must have dtype torch.bool"),
        ({"is_own": torch.ones(2, dtype=torch.bool, device="meta")}, ValueError, "is_own is on meta, expected cpu"),
        ({"level": "word"}, ValueError, "level must be one of 'sequence', 'token', got 'word'"),
        ({"level": "token"}, ValueError, 'level="token" needs source_token_logprobs'),
        ({"level": "token", "source_token_logprobs": torch.zeros(4)}, ValueError, r"must have shape \[5\], got \[4\]"),
        ({"level": "token", "source_token_logprobs": torch.zeros(5)}, ValueError, "own responses only"),
        ({"own_clip_low": -0.1}, ValueError, "own_clip_low must be at least 0"),
        ({"alpha": float("nan")}, ValueError, "alpha must be at least 0"),
        ({"cross_clip_lower": 1.2}, ValueError, "0 <= cross_clip_lower <= cross_clip_upper must hold"),
        ({"log_ratio_clamp": 0.0}, ValueError, "log_ratio_clamp must be a positive number"),
        ({"denominator": 0.0}, ValueError, "denominator must be a positive finite number"),
        ({"backend": "cuda"}, ValueError, "backend must be one of"),
    ],
)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_bad_arguments(change, error, message, backend):
    names = ("token_logprobs", "cu_seqlens", "source_mean_logprobs", "advantages", "is_own", "capability_ratio")
    arguments = dict(zip(names, batch([3, 2], [0.0, 0.0], [1.0, 1.0], own=[True, False]), strict=True))
    with pytest.raises(error, match=message):
        policy_loss(**({"backend": backend} | arguments | change))
