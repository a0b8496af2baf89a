"""linear_policy_loss: the same as linear_logprob followed by policy_loss, whatever the chunks; and what it may cost."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_bytes import LiveBytes
from projection import GRADIENT_TOLERANCE, assert_close, problem
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from triton_plans import as_float64, on_device

from hacpo_kernels import linear_logprob, linear_policy_loss, one_pass, policy_loss
from hacpo_kernels.arguments import Head, Needs, Objective, Responses
from hacpo_kernels.dispatch import implementation
from hacpo_kernels.linear_policy_loss import _forward as forward_op
from hacpo_kernels.torch import linear_logprob as torch_logprob
from hacpo_kernels.torch import linear_policy_loss as torch_backend
from hacpo_kernels.triton import table

LENGTHS = [5, 0, 9, 1, 12, 7]
LOG_RATIOS = [0.0, 0.0, -0.1, 0.05, -0.3, -0.05]
ADVANTAGES = [1.0, 1.0, -2.0, 0.5, 0.7, 0.0]
OWN = [True, True, False, False, False, True]  # the fourth and fifth are clipped, the last has no advantage
LIVE_TOKENS = 5 + 9


@contextmanager
def small_tiles():
    with (
        mock.patch.object(torch_backend, "CPU_TILE", torch_logprob.TileLimit(rows=4, bytes=400)),
        mock.patch.object(torch_logprob, "CPU_TILE", torch_logprob.TileLimit(rows=4, bytes=400)),
        mock.patch.object(table, "LOGITS_BYTES", 2 << 10),
    ):
        yield


def arguments(
    lengths=LENGTHS, log_ratios=LOG_RATIOS, advantages=ADVANTAGES, own=OWN, *, width=10, vocab=50, dtype=torch.float64,
    bias=False, temperature=1.0, softcap=None, seed=0,
):  # fmt: skip
    """Keyword arguments of linear_policy_loss for sequences whose log-ratios are as given."""
    hidden, weight, targets, offset = problem(sum(lengths), width, vocab, bias=bias, dtype=dtype, seed=seed)
    if temperature == "per token":
        temperature = torch.rand(sum(lengths), generator=torch.Generator().manual_seed(seed)).to(dtype) + 0.5
    exact = as_float64(hidden, weight, targets, offset, temperature)
    logprobs = linear_logprob(*exact, softcap)
    means = torch.stack([part.mean() if len(part) else part.sum() for part in logprobs.split(lengths)])
    columns = {
        "source_mean_logprobs": means - torch.tensor(log_ratios),
        "advantages": torch.tensor(advantages),
        "capability_ratio": torch.full((len(lengths),), 0.7),
        "source_token_logprobs": logprobs - 0.01,
    }
    values = dtype if dtype == torch.float64 else torch.float32
    return {
        "hidden": hidden,
        "weight": weight,
        "targets": targets,
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "is_own": torch.tensor(own),
        "bias": offset,
        "temperature": temperature,
        "logit_softcap": softcap,
        "own_clip_low": 0.2,
        "own_clip_high": 0.2,
    } | {name: values_.to(values) for name, values_ in columns.items()}


def run(keywords, scale=3.0, **options):
    """(loss, token_logprobs, stats, gradients of hidden, weight and bias) with an upstream gradient that is not 1."""
    keywords = dict(zip(keywords, on_device(*keywords.values()), strict=True)) | options
    if keywords.get("backend") != "triton":
        keywords = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in keywords.items()}
    leaves = {name: keywords[name].detach().clone().requires_grad_() for name in ("hidden", "weight", "bias")
              if keywords[name] is not None}  # fmt: skip
    loss, token_logprobs, stats = linear_policy_loss(**keywords | leaves)
    assert not token_logprobs.requires_grad and not any(field.requires_grad for field in stats)
    (scale * loss).backward()
    return loss.detach(), token_logprobs, stats, [leaf.grad for leaf in leaves.values()]


def expect(keywords, **options):
    exact = dict(zip(keywords, as_float64(*keywords.values()), strict=True))
    return run(exact, backend="reference", **options)


def assert_equal_results(actual, expected, dtype):
    tolerance = 1e-11 if dtype == torch.float64 else 1e-5
    assert_close(actual[0].cpu(), expected[0], tolerance)
    assert_close(actual[1].cpu(), expected[1], tolerance)
    for one, other in zip(actual[2], expected[2], strict=True):
        assert_close(one.cpu(), other, tolerance)
    for one, other in zip(actual[3], expected[3], strict=True):
        assert one.dtype == dtype
        scale = max(other.abs().max().item(), 1e-6) if other.numel() else 1.0
        # Rounded as part of the exponentials or the gradient of the logits, as a result, and once scaled.
        bound = 1e-10 if dtype == torch.float64 else 3 * GRADIENT_TOLERANCE[dtype]
        bound = 1e-2 if dtype == torch.float16 else bound  # its exponentials are kept in bfloat16
        torch.testing.assert_close(one.double().cpu(), other, rtol=0, atol=bound * scale)


@pytest.mark.parametrize("level", ["sequence", "token"])
@pytest.mark.parametrize("chunk_tokens", [None, 15, 10, 1])
@pytest.mark.parametrize("variant", ["plain", "everything"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_equals_two_operators(dtype, variant, chunk_tokens, level):
    """Chunks of several responses, of one, and shorter than some of them."""
    extras = {"bias": True, "temperature": "per token", "softcap": 2.0} if variant == "everything" else {}
    keywords = arguments(dtype=dtype, own=[True] * 6 if level == "token" else OWN, **extras)
    with small_tiles():
        actual = run(keywords, chunk_tokens=chunk_tokens, level=level)
    assert_equal_results(actual, expect(keywords, level=level), dtype)


@pytest.mark.parametrize("chunk_tokens", [None, 10, 1])
@pytest.mark.parametrize("variant", ["plain", "everything"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_triton_equals_two_operators(dtype, variant, chunk_tokens):
    extras = {"bias": True, "temperature": "per token", "softcap": 2.0} if variant == "everything" else {}
    keywords = arguments([3, 0, 12, 2], [0.0, 0.0, -0.1, 0.05], [1.0, 1.0, -2.0, 0.5], OWN[:4], dtype=dtype, **extras)
    with small_tiles():
        actual = run(keywords, chunk_tokens=chunk_tokens, backend="triton")
    assert_equal_results(actual, expect(keywords), dtype)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 5, 9]), min_size=1, max_size=7),
    chunk_tokens=st.sampled_from([None, 1, 4, 8, 100]),
    width=st.integers(1, 9),
    vocab=st.integers(1, 40),
    bias=st.booleans(),
    denominator=st.sampled_from([None, 12.5]),
    seed=st.integers(0, 99),
)
def test_equals_reference(lengths, chunk_tokens, width, vocab, bias, denominator, seed):
    generator = torch.Generator().manual_seed(seed)
    pick = lambda values: [values[i] for i in torch.randint(len(values), (len(lengths),), generator=generator)]  # noqa: E731
    keywords = arguments(
        lengths, pick([-0.01, 0.05, -0.05, -0.5, 11.0]), pick([1.0, -1.0, 0.0]), pick([True, False]),
        width=width, vocab=vocab, bias=bias, seed=seed,
    ) | {"denominator": denominator}  # fmt: skip
    with small_tiles():
        actual = run(keywords, chunk_tokens=chunk_tokens)
    assert_equal_results(actual, expect(keywords), torch.float64)


def test_gradcheck():
    keywords = arguments([2, 3], [0.05, -0.1], [1.0, -2.0], [True, True], width=3, vocab=7, bias=True) | {
        "own_clip_low": 0.9,
        "own_clip_high": 2.0,
    }
    names = ("hidden", "weight", "bias")

    def loss(*leaves):
        return linear_policy_loss(**keywords | dict(zip(names, leaves, strict=True)), chunk_tokens=3)[0]

    assert torch.autograd.gradcheck(loss, [keywords[name].requires_grad_() for name in names])


@pytest.mark.parametrize("wanted", [("hidden",), ("weight",), ("bias",), ("hidden", "bias"), ()])
def test_frozen_inputs(wanted):
    keywords = arguments(bias=True)
    _, _, _, expected = run(keywords, scale=1.0)
    for name, grad in zip(("hidden", "weight", "bias"), expected, strict=True):
        keywords[name].requires_grad_(name in wanted)
        keywords[name].wanted = grad
    loss, _, _ = linear_policy_loss(**keywords)
    assert loss.requires_grad == bool(wanted)
    if wanted:
        loss.backward()
    for name in ("hidden", "weight", "bias"):
        assert (
            (keywords[name].grad is None)
            if name not in wanted
            else torch.equal(keywords[name].grad, keywords[name].wanted)
        )


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_without_sequences_and_without_tokens(backend):
    for lengths in ([], [0, 0]):
        count = len(lengths)
        keywords = arguments([3], [0.0], [1.0], [True], dtype=torch.float32) | {
            "hidden": torch.zeros(0, 10),
            "targets": torch.zeros(0, dtype=torch.long),
            "cu_seqlens": torch.zeros(count + 1, dtype=torch.long),
            "source_token_logprobs": torch.zeros(0),
        }
        keywords |= {name: keywords[name][:1].expand(count) if count else keywords[name][:0] for name in (
            "source_mean_logprobs", "advantages", "capability_ratio", "is_own")}  # fmt: skip
        loss, token_logprobs, stats, grads = run(keywords, backend=backend)
        assert loss == 0 and token_logprobs.shape == (0,) and stats.live.shape == (count,)
        assert [grad.shape for grad in grads] == [(0, 10), (50, 10)] and not grads[1].any()


def test_without_a_live_response_all_gradients_are_zero():
    keywords = arguments(advantages=[0.0] * 6, bias=True)
    for chunk_tokens in (None, 1, 10):
        *_, grads = run(keywords, chunk_tokens=chunk_tokens)
        assert len(grads) == 3 and not any(grad.any() for grad in grads)


def test_micro_batches_add_up():
    keywords = arguments()
    whole = run(keywords, denominator=6.0)
    total = [torch.zeros_like(whole[0]), torch.zeros_like(whole[3][1])]
    for first, last in ((0, 2), (2, 3), (3, 6)):
        start, stop = keywords["cu_seqlens"][first], keywords["cu_seqlens"][last]
        per_token, per_sequence = ("hidden", "targets", "source_token_logprobs"), (
            "source_mean_logprobs", "advantages", "capability_ratio", "is_own")  # fmt: skip
        micro = keywords | {"cu_seqlens": keywords["cu_seqlens"][first : last + 1] - start}
        micro |= {name: keywords[name][start:stop] for name in per_token}
        micro |= {name: keywords[name][first:last] for name in per_sequence}
        part = run(micro, denominator=6.0)
        total = [total[0] + part[0], total[1] + part[3][1]]
    torch.testing.assert_close(total[0], whole[0])
    torch.testing.assert_close(total[1], whole[3][1])


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_repeats_bit_for_bit(backend):
    keywords = arguments([3, 12, 2], [0.0, -0.1, 0.05], [1.0, -2.0, 0.5], OWN[1:4], dtype=torch.float32)
    first, second = (run(keywords, chunk_tokens=10, backend=backend) for _ in range(2))
    for one, other in zip([first[0], *first[3]], [second[0], *second[3]], strict=True):
        assert torch.equal(one, other)


def test_backward_twice_scales_twice():
    keywords = arguments()
    hidden = keywords["hidden"].requires_grad_()
    loss, _, _ = linear_policy_loss(**keywords)
    (first,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    (second,) = torch.autograd.grad(2 * loss, hidden)
    assert torch.equal(2 * first, second) and first.any()


def test_double_backward_is_refused():
    keywords = arguments()
    hidden = keywords["hidden"].requires_grad_()
    (grad,) = torch.autograd.grad(linear_policy_loss(**keywords)[0], hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_policy_loss has no double backward"):
        grad.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    keywords = arguments()
    *_, expected = run(keywords, scale=1.0)
    hidden, weight = keywords.pop("hidden").requires_grad_(), keywords.pop("weight").requires_grad_()
    function = lambda hidden, weight: linear_policy_loss(hidden, weight, **keywords)[0]  # noqa: E731
    checkpoint(function, hidden, weight, use_reentrant=use_reentrant).backward()
    assert torch.equal(hidden.grad, expected[0]) and torch.equal(weight.grad, expected[1])


def test_autocast_changes_nothing():
    keywords = arguments(dtype=torch.float32)
    expected = run(keywords)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = run(keywords)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[3][1], expected[3][1])


def test_tied_weight_accumulates_with_the_embedding():
    keywords = arguments(dtype=torch.float32)
    weight, ids = keywords["weight"].requires_grad_(), torch.arange(34)
    keywords["hidden"] = torch.tanh(torch.nn.functional.embedding(ids, weight))
    linear_policy_loss(**keywords)[0].backward()
    actual, weight.grad = weight.grad, None
    keywords["hidden"] = torch.tanh(torch.nn.functional.embedding(ids, weight))
    linear_policy_loss(**keywords, backend="reference")[0].backward()
    torch.testing.assert_close(actual, weight.grad)


def test_compile():
    keywords = arguments(dtype=torch.float32)

    def total(hidden, weight):
        loss, token_logprobs, stats = linear_policy_loss(torch.tanh(hidden), weight, **rest)
        return loss + stats.ratio.sum() + token_logprobs.sum()

    rest = {name: value for name, value in keywords.items() if name not in ("hidden", "weight")}
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    grads = []
    for function in (total, compiled):
        hidden, weight = (keywords[name].detach().requires_grad_() for name in ("hidden", "weight"))
        function(hidden, weight).backward()
        grads.append((hidden.grad, weight.grad))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_custom_operator_contract(backend, dtype):
    keywords = arguments([2, 3], [0.05, -0.1], [1.0, -2.0], [True, True], width=8, vocab=9, bias=True, dtype=dtype)
    keywords = dict(zip(keywords, on_device(*keywords.values()), strict=True))
    names = ("hidden", "weight", "bias")
    leaves = {name: keywords[name].requires_grad_() for name in names}
    torch.library.opcheck(
        forward_op,
        (
            leaves["hidden"], leaves["weight"], keywords["targets"], leaves["bias"], 0.7, None, None,
            keywords["cu_seqlens"], keywords["source_mean_logprobs"], keywords["advantages"], keywords["is_own"],
            keywords["capability_ratio"], None, [0.2, 0.2, 0.8, 1.0, 1.0, 10.0], None, 3, [True] * 3, backend,
        ),
    )  # fmt: skip


def one_pass_run(keywords, chunk_tokens, needs):
    """one_pass.run on the torch backend, beneath the custom operator, which no dispatch mode looks into."""
    names = ("cu_seqlens", "source_mean_logprobs", "advantages", "is_own", "capability_ratio")
    return one_pass.run(
        Head(keywords["hidden"], keywords["weight"], keywords["targets"], None, 1.0, None),
        Responses(*(keywords[name] for name in names), None),
        Objective(0.2, 0.2, 0.8, 1.0, 1.0, 10.0, denominator=6.0),
        keywords["cu_seqlens"].tolist(),
        chunk_tokens,
        Needs(*needs),
        "torch",
    )


def products_of(chunk_tokens=None, hidden=True, weight=True):
    """Multiplications and additions of one call under a counter, in passes over all tokens."""
    counted = {torch.ops.aten.addmm_: lambda _, left, right, **kwargs: 2 * left[0] * left[1] * right[1]}
    counter = FlopCounterMode(display=False, custom_mapping=counted)
    keywords = arguments(dtype=torch.float32)
    with counter:
        one_pass_run(keywords, chunk_tokens, (hidden, weight, False))
    return counter.get_total_flops() / (2 * 10 * 50)


def test_three_products_and_the_last_two_for_live_rows_only():
    assert products_of() == 34 + 2 * LIVE_TOKENS
    assert products_of(chunk_tokens=12) == 34 + 2 * LIVE_TOKENS
    assert products_of(weight=False) == 34 + LIVE_TOKENS
    assert products_of(weight=False, hidden=False) == 34


def test_responses_longer_than_a_chunk_cost_four():
    assert products_of(chunk_tokens=8) == 34 + 2 * LIVE_TOKENS + 9  # the live one of 9 tokens is computed again


@pytest.mark.parametrize("weight", [True, False])
def test_memory_is_that_of_a_chunk(weight):
    lengths, vocab, width, chunk_tokens = [40] * 20, 500, 4, 80
    keywords = arguments(lengths, [0.0] * 20, [1.0] * 20, [True] * 20, vocab=vocab, width=width, dtype=torch.float32)
    memory = LiveBytes()
    memory.ignore(*(value for value in keywords.values() if isinstance(value, torch.Tensor)))
    kept, logits = chunk_tokens * vocab * 4, 800 * vocab * 4
    with memory:
        grads = one_pass_run(keywords, chunk_tokens, (True, weight, False))[2]
    assert (grads[1] is None) == (not weight)
    assert memory.peak <= 1.5 * kept < logits / 5


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_default_chunks_fit_their_memory(backend):
    hidden, weight = torch.empty(1, 8, dtype=torch.bfloat16), torch.empty(151936, 8, dtype=torch.bfloat16)
    rows = implementation(backend, "linear_policy_loss").chunk_rows(hidden, weight)
    assert rows == (441 if backend == "torch" else 4416)


def test_parts_hold_whole_sequences_in_order():
    parts = list(one_pass.split([0, 5, 5, 14, 15, 27, 34], 15))
    assert [part.sequences for part in parts] == [slice(0, 4), slice(4, 5), slice(5, 6)]
    assert [part.tokens for part in parts] == [slice(0, 15), slice(15, 27), slice(27, 34)]
    parts = list(one_pass.split([0, 5, 5, 14, 15, 27, 34], 1))
    assert [part.rows for part in parts] == [5, 0, 9, 1, 12, 7]
    assert list(one_pass.split([0], 15)) == []


def test_equals_the_two_public_operators():
    keywords = arguments(dtype=torch.float32)
    loss, token_logprobs, stats = linear_policy_loss(**keywords)
    logprobs = linear_logprob(keywords["hidden"], keywords["weight"], keywords["targets"])
    names = ("cu_seqlens", "source_mean_logprobs", "advantages", "is_own", "capability_ratio")
    other, other_stats = policy_loss(logprobs, *(keywords[name] for name in names), own_clip_low=0.2, own_clip_high=0.2)
    torch.testing.assert_close(token_logprobs, logprobs)
    torch.testing.assert_close(loss, other)
    torch.testing.assert_close(tuple(stats), tuple(other_stats))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden": torch.zeros(34, 3)}, ValueError, r"weight must have shape \[any, 3\]"),
        ({"targets": torch.full((34,), 50)}, IndexError, r"targets\[0\] = 50"),
        ({"temperature": 0.0}, ValueError, "temperature must be a positive"),
        ({"temperature": torch.zeros(34)}, ValueError, "temperature must be positive"),
        ({"cu_seqlens": torch.tensor([0, 5, 5, 14, 15, 27, 33])}, ValueError, "cu_seqlens must end at"),
        ({"is_own": torch.ones(6)}, TypeError, "is_own must have dtype torch.bool"),
        ({"level": "token"}, ValueError, "own responses only"),
        ({"level": "token", "source_token_logprobs": None}, ValueError, "needs source_token_logprobs"),
        ({"chunk_tokens": 0}, ValueError, "chunk_tokens must be at least 1"),
        ({"denominator": -1.0}, ValueError, "denominator must be a positive"),
        ({"backend": "cuda"}, ValueError, "backend must be one of"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        linear_policy_loss(**arguments() | change)
