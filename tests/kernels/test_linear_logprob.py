"""linear_logprob: values and gradients against golden cases and the reference, and the ways such operators go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from projection import GRADIENT_TOLERANCE, LOGPROB_TOLERANCE, assert_close, problem, run
from torch.utils.checkpoint import checkpoint

from hacpo_kernels import linear_logprob
from hacpo_kernels.arguments import Head
from hacpo_kernels.linear_logprob import _forward as forward_op
from hacpo_kernels.torch import linear_logprob as torch_backend

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "linear_logprob.json").read_text())


def small_tiles(rows=4, floats=12):
    """Tiles of a few numbers, so that small problems have many of them in both directions."""
    return mock.patch.object(torch_backend, "CPU_TILE", torch_backend.TileLimit(rows=rows, bytes=4 * floats))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"T{case['T']}-H{case['H']}-V{case['V']}")
def test_golden(case, dtype, tolerance, backend):
    def tensor(values):
        return None if values is None else torch.tensor(values, dtype=dtype)

    results, grads = run(
        tensor(case["hidden"]),
        tensor(case["weight"]),
        torch.tensor(case["targets"]),
        tensor(case["bias"]),
        temperature=case["temperature"],
        upstream=tensor(case["grad_logprob"]),
        upstream_entropy=tensor(case["grad_entropy"]),
        backend=backend,
    )
    expected = case["expected"]
    assert_close(results[0], torch.tensor(expected["logprob"], dtype=torch.float64), tolerance)
    assert_close(results[1], torch.tensor(expected["entropy"], dtype=torch.float64), tolerance)
    for grad, name in zip(grads, ("grad_hidden", "grad_weight", "grad_bias"), strict=False):
        assert_close(grad, torch.tensor(expected[name], dtype=torch.float64), tolerance)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(0, 23),
    width=st.integers(1, 19),
    vocab=st.integers(1, 41),
    tile_rows=st.integers(1, 30),
    tile_floats=st.integers(1, 400),
    bias=st.booleans(),
    temperature=st.sampled_from([1.0, 0.6, "per token"]),
    softcap=st.sampled_from([None, 2.0]),
    with_logprob=st.booleans(),
    dead=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_equals_reference_whatever_the_tiling(
    tokens, width, vocab, tile_rows, tile_floats, bias, temperature, softcap, with_logprob, dead, seed
):
    inputs = problem(tokens, width, vocab, bias=bias, dtype=torch.float64, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    alive = torch.rand(tokens, generator=generator) >= dead
    options = {
        "upstream": torch.randn(tokens, generator=generator, dtype=torch.float64) * alive if with_logprob else None,
        "upstream_entropy": torch.randn(tokens, generator=generator, dtype=torch.float64) * alive,
        "temperature": torch.rand(tokens, generator=generator, dtype=torch.float64) + 0.5
        if temperature == "per token"
        else temperature,
        "logit_softcap": softcap,
    }
    with small_tiles(tile_rows, tile_floats):
        results, grads = run(*inputs, **options)
    expected_results, expected_grads = run(*inputs, **options, backend="reference")
    for actual, expected in zip([*results, *grads], [*expected_results, *expected_grads], strict=True):
        assert_close(actual, expected, 1e-11)


@pytest.mark.parametrize("dtype", LOGPROB_TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("tokens", "width", "vocab"), [(252, 123, 507), (123, 507, 252), (507, 252, 123), (1, 64, 997)]
)
def test_odd_shapes_and_precision(tokens, width, vocab, dtype):
    inputs = problem(tokens, width, vocab, bias=True, dtype=dtype)
    upstream = torch.linspace(-1, 2, tokens, dtype=torch.float64)
    results, grads = run(*inputs, upstream=upstream)
    exact = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    expected_results, expected_grads = run(*exact, upstream=upstream, backend="reference")
    assert results[0].dtype == results[1].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (results[0] <= 0).all()
    for actual, expected in zip(results, expected_results, strict=True):
        assert_close(actual, expected, LOGPROB_TOLERANCE[dtype])
    for actual, expected, tensor in zip(grads, expected_grads, (inputs[0], inputs[1], inputs[3]), strict=True):
        assert actual.dtype == tensor.dtype
        assert_close(actual, expected, GRADIENT_TOLERANCE[dtype])


def test_inputs_may_differ_in_dtype():
    hidden, weight, targets, _ = problem(20, 16, 50)
    hidden = hidden.bfloat16()
    results, grads = run(hidden, weight, targets, upstream=torch.ones(20))
    expected, _ = run(hidden.double(), weight.double(), targets, upstream=torch.ones(20), backend="reference")
    assert_close(results[0], expected[0], 1e-5)
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("temperature", [0.7, torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5], dtype=torch.float64)])
def test_gradcheck(temperature, softcap):
    hidden, weight, targets, bias = problem(5, 3, 7, bias=True, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    with small_tiles():
        assert torch.autograd.gradcheck(
            lambda hidden, weight, bias: linear_logprob(
                hidden, weight, targets, bias, temperature, softcap, return_entropy=True
            ),
            leaves,
        )


@pytest.mark.parametrize("dead", ["all", "first", "last", "none"])
def test_rows_without_gradient_get_exact_zeros(dead):
    hidden, weight, targets, _ = problem(6, 4, 9)
    upstream = torch.arange(1.0, 7.0)
    zeroed = {"all": slice(None), "first": slice(0, 2), "last": slice(4, 6), "none": slice(0, 0)}[dead]
    upstream[zeroed] = 0
    _, (grad_hidden, grad_weight) = run(hidden, weight, targets, upstream=upstream)
    assert torch.equal((grad_hidden != 0).any(1), upstream != 0)
    assert dead != "all" or not grad_weight.any()


def test_nan_upstream_surfaces():
    hidden, weight, targets, _ = problem(3, 4, 9)
    _, grads = run(hidden, weight, targets, upstream=torch.tensor([0.0, float("nan"), 1.0]))
    assert grads[0].isnan().any(1).tolist() == [False, True, False]
    assert grads[1].isnan().all()


@pytest.mark.parametrize("frozen", [(), ("hidden",), ("weight",), ("bias",), ("hidden", "bias"), ("weight", "bias")])
def test_frozen_inputs(frozen):
    inputs = problem(8, 4, 9, bias=True)
    _, expected = run(*inputs, upstream=torch.ones(8))
    hidden, weight, targets, bias = inputs
    tensors = {"hidden": hidden, "weight": weight, "bias": bias}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name not in frozen)
    linear_logprob(hidden, weight, targets, bias).sum().backward()
    for (name, tensor), grad in zip(tensors.items(), expected, strict=True):
        assert (tensor.grad is None) if name in frozen else torch.equal(tensor.grad, grad)


@pytest.mark.parametrize("layout", ["slice of a larger buffer", "transposed", "every second row", "column slice"])
def test_weight_of_any_strides(layout):
    hidden, weight, targets, _ = problem(20, 12, 34)
    view = {
        "slice of a larger buffer": lambda: torch.cat([weight + 1, weight, weight + 2])[34:68],
        "transposed": lambda: weight.T.contiguous().T,
        "every second row": lambda: weight.repeat_interleave(2, dim=0)[::2],
        "column slice": lambda: torch.cat([weight + 1, weight], dim=1)[:, 12:],
    }[layout]()
    assert torch.equal(view, weight)
    with small_tiles():
        results, grads = run(hidden, view, targets, upstream=torch.ones(20))
        expected_results, expected_grads = run(hidden, weight, targets, upstream=torch.ones(20))
    for actual, expected in zip([*results, *grads], [*expected_results, *expected_grads], strict=True):
        assert_close(actual, expected, 1e-6)


def test_gradient_reaches_the_buffer_behind_a_weight_slice():
    hidden, weight, targets, _ = problem(5, 4, 6)
    buffer = torch.cat([weight, weight]).requires_grad_()
    linear_logprob(hidden, buffer[6:], targets).sum().backward()
    assert not buffer.grad[:6].any() and buffer.grad[6:].any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_target_dtypes(dtype):
    hidden, weight, targets, _ = problem(9, 4, 300)
    targets = targets % 100
    assert torch.equal(linear_logprob(hidden, weight, targets.to(dtype)), linear_logprob(hidden, weight, targets))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(("target", "message"), [(9, r"targets\[2\] = 9"), (-1, "ignore"), (-100, "ignore")])
def test_target_outside_the_vocabulary(target, message, backend):
    hidden, weight, targets, _ = problem(4, 3, 9)
    targets[2] = target
    with pytest.raises(IndexError, match=message):
        linear_logprob(hidden, weight, targets, backend=backend)


@pytest.mark.parametrize("target", [9, -1])
def test_target_outside_the_vocabulary_is_nan_where_it_cannot_be_checked(target):
    hidden, weight, targets, _ = problem(4, 3, 9)
    targets[2] = target
    with small_tiles():
        logprob, _, _ = torch_backend.forward(Head(hidden, weight, targets, None, 1.0, None), False)
    assert logprob.isnan().tolist() == [False, False, True, False]


def test_no_tokens():
    results, grads = run(*problem(0, 4, 9, bias=True), upstream=torch.ones(0), upstream_entropy=torch.ones(0))
    assert results[0].shape == results[1].shape == (0,)
    assert [grad.shape for grad in grads] == [(0, 4), (9, 4), (9,)] and not any(grad.any() for grad in grads)


def test_calls_are_repeatable_and_independent():
    inputs = problem(50, 8, 70, bias=True)
    upstream = torch.linspace(-1, 1, 50)
    with small_tiles(rows=16, floats=256):
        first = run(*inputs, upstream=upstream, upstream_entropy=upstream)
        second = run(*inputs, upstream=upstream, upstream_entropy=upstream)
    for one, other in zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True):
        assert torch.equal(one, other)


def test_two_calls_in_one_graph():
    hidden, weight, targets, _ = problem(6, 4, 9)
    weight.requires_grad_()
    (linear_logprob(hidden, weight, targets).sum() + linear_logprob(2 * hidden, weight, targets).sum()).backward()
    _, (_, once) = run(hidden, weight.detach(), targets, upstream=torch.ones(6))
    _, (_, twice) = run(2 * hidden, weight.detach(), targets, upstream=torch.ones(6))
    torch.testing.assert_close(weight.grad, once + twice)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_uniform_softmax_does_not_drift(dtype):
    """Thousands of equal tiny gradients into one weight: accumulated in bfloat16 they would stop adding up."""
    tokens, width, vocab = 8192, 64, 64
    hidden, weight = torch.ones(tokens, width, dtype=dtype), torch.zeros(vocab, width, dtype=dtype)
    with small_tiles(rows=64, floats=1024):
        (logprob, entropy), (_, grad_weight) = run(
            hidden, weight, torch.zeros(tokens, dtype=torch.long), upstream=torch.full((tokens,), 1e-5)
        )
    log_vocab = torch.tensor(float(vocab)).log()
    assert_close(logprob, -log_vocab.expand(tokens), 1e-6)
    assert_close(entropy, log_vocab.expand(tokens), 1e-6)
    expected = tokens * 1e-5 * (torch.eye(vocab, dtype=torch.float64)[0] - 1 / vocab)
    torch.testing.assert_close(
        grad_weight.double(), expected[:, None].expand(vocab, width), rtol=GRADIENT_TOLERANCE[dtype], atol=0
    )


def test_huge_logits():
    hidden, weight, targets, _ = problem(30, 8, 40)
    hidden = hidden * 1e5
    targets[::2] = (hidden @ weight.T).argmax(1)[::2]
    results, grads = run(hidden, weight, targets, upstream=torch.ones(30), upstream_entropy=torch.ones(30))
    assert all(tensor.isfinite().all() for tensor in [*results, *grads])
    assert (results[0] <= 0).all() and (results[0][::2] == 0).all()


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_vocabulary_masked_by_bias_equals_a_smaller_vocabulary(backend):
    hidden, weight, targets, _ = problem(10, 6, 40, dtype=torch.float64)
    kept, bias = 25, torch.zeros(40, dtype=torch.float64)
    bias[kept:] = -float("inf")
    targets, upstream = targets % kept, torch.linspace(-1, 1, 10)
    options = {"upstream": upstream, "upstream_entropy": upstream.flip(0)}
    with small_tiles():  # some tiles are masked throughout
        results, grads = run(hidden, weight, targets, bias, backend=backend, **options)
        expected_results, expected_grads = run(hidden, weight[:kept], targets, bias[:kept], **options)
    for actual, expected in zip(results, expected_results, strict=True):
        assert_close(actual, expected, 1e-12)
    assert_close(grads[0], expected_grads[0], 1e-12)
    for actual, expected in zip(grads[1:], expected_grads[1:], strict=True):
        assert_close(actual[:kept], expected, 1e-12)
        assert not actual[kept:].any()


def test_autocast_does_not_lower_the_precision():
    hidden, weight, targets, _ = problem(30, 16, 80)
    expected, expected_grads = run(hidden, weight, targets, upstream=torch.ones(30))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results, grads = run(hidden, weight, targets, upstream=torch.ones(30))
    for actual, wanted in zip([*results, *grads], [*expected, *expected_grads], strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    hidden, weight, targets, _ = problem(10, 6, 20)
    _, expected = run(hidden, weight, targets, upstream=torch.ones(10))
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    checkpoint(linear_logprob, hidden, weight, targets, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(hidden.grad, expected[0]) and torch.equal(weight.grad, expected[1])


def test_double_backward_is_refused():
    hidden, weight, targets, _ = problem(5, 4, 9)
    hidden.requires_grad_()
    (grad,) = torch.autograd.grad(linear_logprob(hidden, weight, targets).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_logprob has no double backward"):
        grad.sum().backward()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = torch.nn.Linear(6, 6)
        self.weight = torch.nn.Parameter(torch.randn(11, 6))

    def forward(self, hidden, targets):
        logprob, entropy = linear_logprob(
            torch.tanh(self.trunk(hidden)), self.weight, targets, temperature=0.8, return_entropy=True
        )
        return logprob.sum() + 0.1 * entropy.sum()


@pytest.mark.parametrize("frozen", [False, True])
def test_compile_of_a_model(frozen):
    model = Model()
    model.weight.requires_grad_(not frozen)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (7, 13):
        hidden, targets = torch.randn(tokens, 6), torch.randint(11, (tokens,))
        grads = []
        for function in (model, compiled):
            model.zero_grad()
            loss = function(hidden, targets)
            loss.backward()
            grads.append([loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
        for eager, other in zip(*grads, strict=True):
            torch.testing.assert_close(eager, other)


@pytest.mark.parametrize("variant", ["plain", "everything"])
def test_custom_operator_contract(variant):
    """Schema, fake implementation and autograd registration, as torch's own checker sees them."""
    hidden, weight, targets, bias = problem(5, 4, 9, bias=True)
    hidden.requires_grad_()
    weight.requires_grad_(variant == "everything")
    if variant == "plain":
        args = (hidden, weight, targets, None, 0.7, None, None, False, "torch")
    else:
        args = (hidden, weight, targets, bias.requires_grad_(), 1.0, torch.rand(5) + 0.5, 3.0, True, "torch")
    torch.library.opcheck(forward_op, args)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden": torch.randn(2, 3, 4)}, ValueError, r"hidden must have shape \[any, any\], got \[2, 3, 4\]"),
        ({"hidden": torch.ones(5, 4, dtype=torch.long)}, TypeError, "hidden must have a floating-point dtype"),
        ({"hidden": [1.0]}, TypeError, "hidden must be a tensor"),
        ({"weight": torch.randn(9, 5)}, ValueError, r"weight must have shape \[any, 4\], got \[9, 5\]"),
        ({"weight": torch.randn(0, 4)}, ValueError, "vocabulary is empty"),
        ({"weight": torch.randn(9, 4, device="meta")}, ValueError, "weight is on meta, expected cpu"),
        ({"targets": torch.zeros(4, dtype=torch.long)}, ValueError, r"targets must have shape \[5\]"),
        ({"targets": torch.zeros(5)}, TypeError, "targets must have an integer dtype"),
        ({"targets": torch.zeros(5, dtype=torch.bool)}, TypeError, "targets must have an integer dtype"),
        ({"bias": torch.randn(4)}, ValueError, r"bias must have shape \[9\]"),
        ({"temperature": 0.0}, ValueError, "temperature must be a positive finite number"),
        ({"temperature": float("nan")}, ValueError, "temperature must be a positive finite number"),
        ({"temperature": torch.ones(3)}, ValueError, r"temperature must have shape \[5\]"),
        ({"temperature": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])}, ValueError, "temperature must be positive"),
        ({"temperature": torch.ones(5, requires_grad=True)}, ValueError, "not differentiable in it"),
        ({"logit_softcap": -1.0}, ValueError, "logit_softcap must be a positive finite number"),
        ({"backend": "cuda"}, ValueError, "backend must be one of 'auto', 'torch', 'triton', 'reference', got 'cuda'"),
    ],
)
def test_bad_arguments(change, error, message):
    hidden, weight, targets, _ = problem(5, 4, 9)
    with pytest.raises(error, match=message):
        linear_logprob(**({"hidden": hidden, "weight": weight, "targets": targets} | change))
