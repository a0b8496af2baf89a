"""policy_loss's Triton kernels, interpreted where there is no GPU: against golden cases and the torch backend."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import DEFAULTS, batch, run
from triton_plans import on_device

from hacpo_kernels.arguments import Responses
from hacpo_kernels.policy_loss import _forward as forward_op
from hacpo_kernels.triton import policy_loss as triton_backend

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "hacpo_step.json").read_text())
CASES = [learner for case in GOLDEN for learner in case["learners"].values()]


@pytest.fixture(autouse=True)
def small_blocks():
    """So that a few dozen tokens are several blocks."""
    with mock.patch.object(triton_backend, "BLOCK", 16):
        yield


def assert_equals_torch(arguments, rtol=2e-6, **options):
    arguments = on_device(*arguments)
    actual, expected = (run(arguments, backend=backend, **options) for backend in ("triton", "torch"))
    for one, other in ((actual[0], expected[0]), *zip(actual[1], expected[1], strict=True), (actual[2], expected[2])):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("case", CASES[:4], ids=range(4))
def test_golden(case):
    expected, settings_ = case["expected"], case["params"]
    arguments = on_device(
        torch.tensor(case["token_logprobs"]),
        torch.tensor(case["cu_seqlens"], dtype=torch.int32),
        torch.tensor(case["source_mean_logprob"]),
        torch.tensor(case["advantage"]),
        torch.tensor(case["is_self"]),
        torch.tensor(case["omega_source_over_learner"]),
    )
    loss, stats, grad = run(
        arguments,
        own_clip_low=settings_["self_clip_low"],
        own_clip_high=settings_["self_clip_high"],
        cross_clip_lower=expected["cross_clip_lower"],
        alpha=settings_["alpha"],
        backend="triton",
    )
    actual = {"loss": loss, "grad_token_logprobs": grad} | stats._asdict()
    for key in ("loss", "mean_logprob", "ratio", "objective", "grad_token_logprobs"):
        torch.testing.assert_close(actual[key].cpu(), torch.tensor(expected[key]), rtol=0, atol=1e-5)


sequence = st.fixed_dictionaries(
    {
        "length": st.sampled_from([0, 0, 1, 3, 15, 16, 17, 50]),
        "log_ratio": st.sampled_from([0.0, 1e-4, 0.01, -0.01, -0.1, 0.3, -0.3, 9.9, 10.1, -10.1, 1e4, -1e4]),
        "advantage": st.sampled_from([-1.3, 0.0, 0.4, 2.0]),
        "own": st.booleans(),
        "capability": st.sampled_from([0.0, 0.8, 3.0]),
    }
)


@settings(max_examples=25, deadline=None)
@given(
    sequences=st.lists(sequence, max_size=6),
    alpha=st.sampled_from([0.0, 1.0, 2.5]),
    cross_clip=st.sampled_from([(0.8, 1.0), (0.0, math.inf)]),
    clamp=st.sampled_from([10.0, math.inf]),
    level=st.sampled_from(["sequence", "token"]),
    denominator=st.sampled_from([None, 12.5]),
    seed=st.integers(0, 99),
)
def test_equals_torch(sequences, alpha, cross_clip, clamp, level, denominator, seed):
    columns = [[entry[key] for entry in sequences] for key in ("length", "log_ratio", "advantage", "own", "capability")]
    lengths, log_ratios, advantages, own, capability = columns
    if level == "token":
        own = [True] * len(own)
    arguments = batch(lengths, log_ratios, advantages, own=own, capability=capability, seed=seed, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    assert_equals_torch(
        arguments,
        rtol=1e-4 if math.isinf(clamp) else 5e-6,  # exp of 80 magnifies the last bit of its argument
        alpha=alpha,
        cross_clip_lower=cross_clip[0],
        cross_clip_upper=cross_clip[1],
        log_ratio_clamp=clamp,
        level=level,
        denominator=denominator,
        source_token_logprobs=on_device(arguments[0] - 0.5 * torch.randn(sum(lengths), generator=generator))[0],
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("level", ["sequence", "token"])
def test_half_precision_logprobs(dtype, level):
    arguments = batch([30, 50], [1e-2, -1e-2], [1.0, -1.0], dtype=dtype)
    source = on_device(arguments[0] + 0.125)[0]
    assert_equals_torch(arguments, rtol=2**-7, level=level, source_token_logprobs=source, own_clip_low=0.2)


@pytest.mark.parametrize("length", [1024, 5000])
def test_on_policy_ratio_is_exactly_one_for_long_responses(length):
    logprobs = -torch.rand(length, generator=torch.Generator().manual_seed(0))
    one = torch.ones(1)
    source = logprobs.double().mean().float()[None]
    with mock.patch.object(triton_backend, "BLOCK", 1024):
        _, stats, _ = run(
            on_device(logprobs, torch.tensor([0, length]), source, one, torch.tensor([True]), one), backend="triton"
        )
    assert stats.ratio.item() == 1.0 and stats.live.item()


def test_more_responses_than_a_block():
    assert_equals_torch(batch([1] * 40, [0.05] * 40, [1.0, -1.0] * 20, own=[True, False] * 20, dtype=torch.float32))


def test_strided_inputs():
    arguments = batch([5, 0, 3], [0.1, 0.0, -0.1], [1.0, 1.0, -2.0], own=[True, True, False], dtype=torch.float32)
    strided = tuple(torch.stack([tensor, tensor], 1)[:, 0] for tensor in arguments)
    assert not strided[0].is_contiguous()
    plain, other = (run(on_device(*tensors), backend="triton") for tensors in (arguments, strided))
    assert torch.equal(plain[0], other[0]) and torch.equal(plain[2], other[2])


def test_repeats_bit_for_bit():
    arguments = on_device(*batch([50, 33], [1e-5, -0.1], [1.0, -1.0], own=[True, False], dtype=torch.float32))
    first, second = (run(arguments, backend="triton") for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[2], second[2])


def test_cross_response_at_token_level_is_nan_where_it_cannot_be_checked():
    arguments = on_device(*batch([3, 2], [0.0, 0.0], [1.0, 1.0], own=[True, False], dtype=torch.float32))
    loss, *_ = triton_backend.forward(arguments[0], Responses(*arguments[1:], arguments[0]), DEFAULTS)
    assert loss.isnan()


def test_boundaries_outside_the_tokens_touch_nothing_outside():
    """On an accelerator cu_seqlens is not checked; the kernel must not write beyond the gradient."""
    arguments = on_device(*batch([3, 2], [0.0, 0.0], [1.0, 1.0], own=True, dtype=torch.float32))
    wrong = torch.tensor([-7, 3, 100_000_000], device=arguments[1].device)
    _, gradient, *_ = triton_backend.forward(arguments[0], Responses(wrong, *arguments[2:], None), DEFAULTS)
    assert gradient.shape == (5,)


def test_nan_logprob_surfaces():
    arguments = list(on_device(*batch([3, 2], [0.0, 0.0], [1.0, 1.0], own=True, dtype=torch.float32)))
    arguments[0][1] = float("nan")
    assert_equals_torch(arguments)


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_custom_operator_contract(level):
    arguments = on_device(*batch([3, 0, 2], [1e-5, 0.0, -0.1], [1.0, 1.0, -1.0], own=True, dtype=torch.float32))
    arguments[0].requires_grad_()
    source = arguments[0].detach() + 0.1 if level == "token" else None
    torch.library.opcheck(forward_op, (*arguments, source, [0.1, 0.2, 0.8, 1.0, 1.0, 10.0], 3.0, "triton"))


@pytest.mark.parametrize("denominator", [None, 2, 2.0])
def test_numbers_are_launched_as_floats(denominator):
    """An integer would be compiled into a kernel of its own, one for each number of responses."""
    launched = []
    kernels = {name: getattr(triton_backend, name) for name in ("policy_loss_kernel", "loss_kernel")}

    class Recorder:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            names = self.kernel.arg_names
            return lambda *arguments, **_: launched.append(dict(zip(names, arguments, strict=False)))

    arguments = on_device(*batch([3, 2], [0.0, 0.0], [1.0, 1.0], own=True, dtype=torch.float32))
    with ExitStack() as patches:
        for name, kernel in kernels.items():
            patches.enter_context(mock.patch.object(triton_backend, name, Recorder(kernel)))
        run(arguments, alpha=1, denominator=denominator, backend="triton")
    numbers = {"own_lower", "own_upper", "cross_lower", "cross_upper", "power", "clamp", "denominator"}
    assert [type(launch[name]) for launch in launched for name in numbers & launch.keys()] == [float] * 8


def test_float64_is_left_to_torch():
    arguments = on_device(*batch([3], [0.0], [1.0]))
    assert run(arguments)[0].dtype == torch.float64
    with pytest.raises(ValueError, match=r'backend="triton" takes float32, bfloat16 and float16, got torch\.float64'):
        run(arguments, backend="triton")
