"""linear_logprob's Triton backend, interpreted where there is no GPU: every route, and how such kernels go wrong."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_bytes import LiveBytes
from projection import GRADIENT_TOLERANCE, assert_close, problem, run
from torch.utils.flop_counter import FlopCounterMode
from triton_plans import DEVICE, ROUTES, as_float64, on_device, planned

from hacpo_kernels import linear_logprob
from hacpo_kernels.arguments import Head, Needs, RowGradients
from hacpo_kernels.linear_logprob import _forward as forward_op
from hacpo_kernels.triton import linear_logprob as triton_backend
from hacpo_kernels.triton import logit_gradients, table

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "linear_logprob.json").read_text())


def compare(inputs, tolerance=1e-5, **options):
    """Results and gradients of the Triton backend against the reference in float64."""
    dtype = inputs[0].dtype
    inputs = on_device(*inputs)
    options = {name: on_device(value)[0] for name, value in options.items()}
    results, grads = run(*inputs, **options, backend="triton")
    wanted = dict(zip(options, as_float64(*options.values()), strict=True))
    expected_results, expected_grads = run(*as_float64(*inputs), **wanted, backend="reference")
    assert not (results[0] > 0).any()
    for actual, expected in zip(results, expected_results, strict=True):
        assert_close(actual, expected, tolerance)
    for actual, expected in zip(grads, expected_grads, strict=True):
        assert actual.dtype == dtype
        # In 16 bits the gradient of the logits is rounded before it is multiplied, and the result once more.
        assert_close(actual, expected, 2 * GRADIENT_TOLERANCE[dtype])
    return results, grads


@pytest.mark.parametrize("route", ["products", "pointers"])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"T{case['T']}-H{case['H']}-V{case['V']}")
def test_golden(case, route):
    def tensor(values):
        return None if values is None else torch.tensor(values)

    inputs = on_device(
        tensor(case["hidden"]), tensor(case["weight"]), torch.tensor(case["targets"]), tensor(case["bias"])
    )
    with planned(route):
        results, grads = run(
            *inputs,
            temperature=case["temperature"],
            upstream=on_device(tensor(case["grad_logprob"]))[0],
            upstream_entropy=on_device(tensor(case["grad_entropy"]))[0],
            backend="triton",
        )
    expected = case["expected"]
    names = ("logprob", "entropy", "grad_hidden", "grad_weight", "grad_bias")
    for name, value in zip(names, [*results, *grads], strict=False):
        assert_close(value.cpu(), torch.tensor(expected[name], dtype=torch.float64), 1e-5)


@settings(max_examples=20, deadline=None)
@given(
    route=st.sampled_from(sorted(ROUTES)),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    tokens=st.integers(1, 9),
    width=st.sampled_from([8, 24, 40, 72, 33, 65]),  # below, on and past the depth of a step; multiples of 8 and not
    vocab=st.sampled_from([1, 2, 63, 64, 65, 200, 300]),
    bias=st.booleans(),
    temperature=st.sampled_from([1.0, 0.6, "per token"]),
    softcap=st.sampled_from([None, 2.0]),
    with_entropy=st.booleans(),
    dead=st.sampled_from([0.0, 0.5, 1.0]),
    memory_rows=st.sampled_from([4, 16]),
    seed=st.integers(0, 99),
)
def test_equals_reference(
    route, dtype, tokens, width, vocab, bias, temperature, softcap, with_entropy, dead, memory_rows, seed
):
    if route == "descriptors":  # they want rows that start at multiples of 16 bytes
        width = -(-width // 8) * 8
    inputs = problem(tokens, width, vocab, bias=bias, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    upstream = torch.randn(tokens, generator=generator) * (torch.rand(tokens, generator=generator) >= dead)
    with planned(route, memory_rows=memory_rows, memory_bytes=8 << 10):
        compare(
            inputs,
            upstream=upstream,
            upstream_entropy=0.3 * upstream.flip(0) if with_entropy else None,
            temperature=torch.rand(tokens, generator=generator) + 0.5 if temperature == "per token" else temperature,
            logit_softcap=softcap,
        )


@pytest.mark.parametrize("route", ROUTES)
def test_no_padding_shows_in_the_result(route):
    """All logits far below 0: columns past the vocabulary, were they 0, would own the softmax."""
    hidden, weight, targets, _ = problem(5, 16, 70)
    with planned(route):
        compare((hidden, weight, targets, torch.full((70,), -50.0)), upstream=torch.ones(5))


@pytest.mark.parametrize("route", ROUTES)
def test_no_tokens_and_no_live_ones(route):
    with planned(route):
        results, grads = run(
            *on_device(*problem(0, 8, 9, bias=True)), upstream=torch.ones(0, device=DEVICE), backend="triton"
        )
        assert results[0].shape == (0,) and not any(grad.any() for grad in grads)
        zeros = torch.zeros(3, device=DEVICE)
        _, grads = run(*on_device(*problem(3, 8, 9, bias=True)), upstream=zeros, backend="triton")
        assert [grad.shape for grad in grads] == [(3, 8), (9, 8), (9,)] and not any(grad.any() for grad in grads)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("target", [9, -1, -100, 2**40])
def test_target_outside_the_vocabulary_is_nan(target, route):
    hidden, weight, targets, _ = on_device(*problem(4, 8, 9))
    targets[2] = target
    with planned(route):
        logprob, _, _ = triton_backend.forward(Head(hidden, weight, targets, None, 1.0, None), False)
    assert logprob.isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
def test_target_dtypes(dtype):
    hidden, weight, targets, _ = problem(4, 8, 200)
    with planned("pointers"):
        compare((hidden, weight, targets.to(dtype)), upstream=torch.ones(4))


@pytest.mark.parametrize("route", ROUTES)
def test_huge_logits(route):
    hidden, weight, targets, _ = on_device(*problem(6, 8, 40))
    hidden = hidden * 1e5
    targets[::2] = (hidden @ weight.T).argmax(1)[::2]
    ones = torch.ones(6, device=DEVICE)
    with planned(route):
        results, grads = run(hidden, weight, targets, upstream=ones, upstream_entropy=ones, backend="triton")
    assert all(tensor.isfinite().all() for tensor in [*results, *grads])
    assert (results[0] <= 0).all()
    # The fused route sums the target's logit on its own: it may end a rounding below the same logit in the tile.
    rounding = 0 if route == "products" else 1e-6 * (hidden @ weight.T).abs().max()
    assert (results[0][::2] >= -rounding).all()


@pytest.mark.parametrize("route", ROUTES)
def test_vocabulary_masked_by_bias_equals_a_smaller_vocabulary(route):
    """Tiles masked throughout included."""
    hidden, weight, targets, _ = on_device(*problem(5, 16, 300))
    kept, bias = 70, torch.zeros(300, device=DEVICE)
    bias[kept:] = -float("inf")
    targets, upstream = targets % kept, torch.linspace(-1, 1, 5, device=DEVICE)
    with planned(route):
        results, grads = run(
            hidden, weight, targets, bias, upstream=upstream, upstream_entropy=upstream, backend="triton"
        )
    exact = as_float64(hidden, weight[:kept], targets, bias[:kept])
    expected_results, expected_grads = run(*exact, upstream=upstream, upstream_entropy=upstream, backend="reference")
    for actual, expected in zip([*results, grads[0]], [*expected_results, expected_grads[0]], strict=True):
        assert_close(actual, expected, 1e-5)
    for actual, expected in zip(grads[1:], expected_grads[1:], strict=True):
        assert_close(actual[:kept], expected, 1e-5)
        assert not actual[kept:].any()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("layout", ["slice of a larger buffer", "every second row", "column slice"])
def test_weight_strides_that_a_kernel_reads(layout, route):
    hidden, weight, targets, _ = problem(4, 16, 70, dtype=torch.float16)
    view = {
        "slice of a larger buffer": lambda: torch.cat([weight + 1, weight, weight + 2])[70:140],
        "every second row": lambda: weight.repeat_interleave(2, dim=0)[::2],
        "column slice": lambda: torch.cat([weight + 1, weight], dim=1)[:, 16:],
    }[layout]()
    assert torch.equal(view, weight)
    with planned(route):
        compare((hidden, view, targets), upstream=torch.ones(4))


@pytest.mark.parametrize("transposed", ["weight", "hidden"])
def test_transposed_operands(transposed):
    """Left to cuBLAS by the real plan, which is what is asked here."""
    hidden, weight, targets, _ = problem(4, 16, 70, dtype=torch.float16)
    inputs = {"hidden": hidden, "weight": weight}
    inputs[transposed] = inputs[transposed].T.contiguous().T
    assert table.plan("logsumexp", inputs["hidden"], inputs["weight"]).route == "products"
    compare((inputs["hidden"], inputs["weight"], targets), upstream=torch.ones(4))


def test_inputs_may_differ_in_dtype():
    hidden, weight, targets, _ = problem(4, 16, 50)
    half = hidden.half()
    results, grads = run(*on_device(half, weight, targets), upstream=torch.ones(4, device=DEVICE), backend="triton")
    expected, _ = run(half.double(), weight.double(), targets, upstream=torch.ones(4), backend="reference")
    assert_close(results[0].cpu(), expected[0], 1e-5)
    assert [grad.dtype for grad in grads] == [torch.float16, torch.float32]


@pytest.mark.parametrize("route", ["pointers", "products"])
def test_offsets_past_int32(route):
    """Rows 2^30 elements apart: the third one starts at 2^31. Memory that nobody touches costs nothing."""
    width, vocab = 16, 4
    buffer = torch.empty(3 * 2**30 + width, dtype=torch.float16, device=DEVICE)
    weight = buffer.as_strided((vocab, width), (2**30, 1))
    hidden, values, targets, _ = on_device(*problem(5, width, vocab, dtype=torch.float16))
    weight.copy_(values)
    with planned(route):
        actual, _, _ = triton_backend.forward(Head(hidden, weight, targets, None, 1.0, None), False)
        expected, _, _ = triton_backend.forward(Head(hidden, values, targets, None, 1.0, None), False)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("route", ROUTES)
def test_upstream_gradients_differ_by_token_and_tiny_ones_survive_float16(route):
    """1e-6 times a probability is 0 in float16 unless it is scaled up on the way."""
    inputs = on_device(*problem(6, 16, 70, dtype=torch.float16))
    upstream = torch.tensor([1e-6, -2e-6, 0.0, 3e-6, 1e-9, -1e-6], device=DEVICE)
    with planned(route):
        grads = backward(Head(*inputs, 1.0, None), upstream, grad_dtype=torch.float32)
    _, expected = run(*as_float64(*inputs), upstream=upstream, backend="reference")
    for actual, wanted in zip(grads, expected, strict=False):
        torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=2e-3 * wanted.abs().max().item())
    assert not grads[0][2].any()


@pytest.mark.parametrize("route", ROUTES)
def test_nan_upstream_surfaces(route):
    inputs = on_device(*problem(3, 8, 9))
    upstream = torch.tensor([0.0, float("nan"), 1.0], device=DEVICE)
    with planned(route):
        _, grads = run(*inputs, upstream=upstream, backend="triton")
    assert grads[0].isnan().any(1).tolist() == [False, True, False]
    assert grads[1].isnan().all()


@pytest.mark.parametrize("route", ["products", "pointers"])
@pytest.mark.parametrize("wanted", [("hidden",), ("weight",), ("bias",), ("hidden", "weight"), ("weight", "bias"), ()])
def test_frozen_inputs(wanted, route):
    hidden, weight, targets, bias = on_device(*problem(4, 8, 9, bias=True))
    tensors = {"hidden": hidden, "weight": weight, "bias": bias}
    with planned(route):
        _, expected = run(hidden, weight, targets, bias, upstream=torch.ones(4, device=DEVICE), backend="triton")
        for name, tensor in tensors.items():
            tensor.requires_grad_(name in wanted)
        logprob = linear_logprob(hidden, weight, targets, bias, backend="triton")
        assert logprob.requires_grad == bool(wanted)
        if wanted:
            logprob.sum().backward()
    for (name, tensor), grad in zip(tensors.items(), expected, strict=True):
        assert torch.equal(tensor.grad, grad) if name in wanted else tensor.grad is None


def backward(head, grad_logprob, mode=None, *, needs=(True, True, False), **options):
    """The gradients, from a backward pass that runs under `mode`."""
    _, logsumexp, _ = triton_backend.forward(head, False)
    grad_logprob = on_device(grad_logprob)[0]
    if isinstance(mode, LiveBytes):
        mode.ignore(grad_logprob, logsumexp, *head[:3])
    with mode or nullcontext():
        return triton_backend.backward(
            head, RowGradients(grad_logprob, None, logsumexp, None), Needs(*needs), **options
        )


def half_head(tokens=12, vocab=600, width=16):
    return Head(*on_device(*problem(tokens, width, vocab, dtype=torch.float16)), 1.0, None)


@pytest.mark.parametrize("live", [0, 1, 7, 12])
def test_backward_products_are_of_live_rows_only(live):
    """Two products per live row on the fused route, whose recomputation is a kernel of the live rows' size."""
    grad = torch.zeros(12)
    grad[torch.randperm(12, generator=torch.Generator().manual_seed(0))[:live]] = 1e-30
    products = {torch.ops.aten.addmm_: lambda _, left, right, **kwargs: 2 * left[0] * left[1] * right[1]}
    launched = []
    kernel = logit_gradients.gradient_kernel

    class Recorder:
        def __getitem__(self, grid):
            return lambda *arguments, **options: (launched.append(arguments), kernel[grid](*arguments, **options))

    with planned("pointers"), mock.patch.object(logit_gradients, "gradient_kernel", Recorder()):
        counter = FlopCounterMode(display=False, custom_mapping=products)
        backward(half_head(), grad, counter)
    assert counter.get_total_flops() == 2 * (2 * live * 16 * 600)
    assert {arguments[0].shape[0] for arguments in launched} == ({live} if live else set())


@pytest.mark.parametrize(("route", "weight"), [("products", True), ("products", False), ("pointers", False)])
def test_backward_holds_no_logits_and_no_gradient_of_a_frozen_weight(weight, route):
    memory, tokens, vocab, width = LiveBytes(), 16, 1024, 8
    with planned(route, tiles=(32, 256, 32), memory_rows=4, memory_bytes=4 << 10):
        backward(half_head(tokens, vocab, width), torch.ones(tokens), memory, needs=(True, weight, False))
    assert memory.biggest <= 16 << 10 < tokens * vocab * 2  # on CPU products convert slices of the weight


@pytest.mark.parametrize("route", ROUTES)
def test_forward_holds_no_logits(route):
    tokens, vocab = 12, 1024
    head = half_head(tokens, vocab, 8)
    with planned(route, tiles=(32, 256, 32), memory_rows=4, memory_bytes=4 << 10), LiveBytes() as memory:
        memory.ignore(*head[:3])
        triton_backend.forward(head, True)
    assert memory.biggest <= 8 << 10 < tokens * vocab * 4 / 5


@pytest.mark.parametrize("route", ROUTES)
def test_repeats_bit_for_bit_and_does_not_accumulate(route):
    inputs = on_device(*problem(9, 24, 300, bias=True, dtype=torch.float16))
    upstream = torch.linspace(-1, 1, 9, device=DEVICE)
    with planned(route):
        first, second = (run(*inputs, upstream=upstream, upstream_entropy=upstream, backend="triton") for _ in range(2))
    for one, other in zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True):
        assert torch.equal(one, other)


def test_uniform_softmax_does_not_drift():
    """Hundreds of equal tiny gradients into one weight, over many blocks of tokens."""
    tokens, width, vocab = 320, 16, 64
    hidden, weight = torch.ones(tokens, width, dtype=torch.float16), torch.zeros(vocab, width, dtype=torch.float16)
    inputs = on_device(hidden, weight, torch.zeros(tokens, dtype=torch.long))
    with planned("pointers", tiles=(64, 64, 32), memory_rows=64):
        _, grad_weight, _ = backward(
            Head(*inputs, None, 1.0, None),
            torch.full((tokens,), 1e-5),
            needs=(False, True, False),
            grad_dtype=torch.float32,
        )
    expected = tokens * 1e-5 * (torch.eye(vocab)[0] - 1 / vocab)
    torch.testing.assert_close(grad_weight.cpu(), expected[:, None].expand(vocab, width), rtol=2**-10, atol=0)


def test_autocast_changes_nothing():
    inputs = on_device(*problem(4, 16, 70))
    ones = torch.ones(4, device=DEVICE)
    expected, expected_grads = run(*inputs, upstream=ones, backend="triton")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        results, grads = run(*inputs, upstream=ones, backend="triton")
    for actual, wanted in zip([*results, *grads], [*expected, *expected_grads], strict=True):
        assert torch.equal(actual, wanted)


def test_double_backward_is_refused():
    hidden, weight, targets, _ = on_device(*problem(3, 8, 9))
    logprob = linear_logprob(hidden.requires_grad_(), weight, targets, backend="triton")
    (grad,) = torch.autograd.grad(logprob.sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_logprob has no double backward"):
        grad.sum().backward()


def test_compile():
    def total(hidden, weight, targets):
        logprob, entropy = linear_logprob(torch.tanh(hidden), weight, targets, return_entropy=True, backend="triton")
        return logprob.sum() + 0.1 * entropy.sum()

    compiled = torch.compile(total, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (3, 5):
        inputs = on_device(*problem(tokens, 8, 20)[:3])
        grads = []
        for function in (total, compiled):
            hidden, weight = (tensor.detach().requires_grad_() for tensor in inputs[:2])
            function(hidden, weight, inputs[2]).backward()
            grads.append((hidden.grad, weight.grad))
        torch.testing.assert_close(*grads)


def test_custom_operator_contract():
    hidden, weight, targets, bias = on_device(*problem(3, 8, 9, bias=True))
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    temperature = torch.rand(3, device=DEVICE) + 0.5
    torch.library.opcheck(forward_op, (*leaves[:2], targets, leaves[2], 1.0, temperature, 3.0, True, "triton"))
