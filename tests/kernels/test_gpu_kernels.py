"""The operators' real kernels on a GPU: values against float64, repeatability, graphs, compilation, memory, offsets.

`make gpu-check` runs this file where neither hypothesis nor a network is at hand.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from projection import problem, run
from responses import batch
from responses import run as run_policy
from triton_plans import as_float64
from triton_plans import on_device as on_gpu

from hacpo_kernels import linear_logprob, linear_policy_loss, policy_loss
from hacpo_kernels.triton import table

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
# Relative error of a gradient as a whole: the gradient of the logits is rounded to 16 bits, and so is the result.
GRADIENT_ERROR = {torch.bfloat16: 6e-3, torch.float16: 1.5e-3, torch.float32: 1e-5}


@contextmanager
def forced(route):
    """The plan of this chip, on `route` wherever that is possible."""
    choose = table.plan

    def plan(kind, hidden, weight):
        chosen = choose(kind, hidden[:, :64], weight[:, :64])  # narrow enough for the fused route
        return chosen._replace(route="products") if route == "products" else chosen

    with mock.patch.object(table, "plan", plan):
        yield


def relative(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def check(inputs, upstream, upstream_entropy=None, **options):
    results, grads = run(*inputs, upstream=upstream, upstream_entropy=upstream_entropy, backend="triton", **options)
    exact = as_float64(*inputs)
    wanted = dict(zip(options, as_float64(*options.values()), strict=True))
    expected_results, expected_grads = run(
        *exact, upstream=upstream, upstream_entropy=upstream_entropy, backend="reference", **wanted
    )
    assert not (results[0] > 0).any()
    for actual, expected in zip(results, expected_results, strict=True):
        assert (actual.double() - expected).abs().max().item() <= 1e-5
    for actual, expected in zip(grads, expected_grads, strict=True):
        assert relative(actual, expected) <= GRADIENT_ERROR[inputs[0].dtype]


@pytest.mark.parametrize("route", ["fused", "products"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("tokens", "width", "vocab"), [(1, 64, 257), (252, 512, 5003), (507, 136, 4096), (300, 130, 999)]
)
def test_values_and_gradients(tokens, width, vocab, dtype, route):
    inputs = on_gpu(*problem(tokens, width, vocab, dtype=dtype))
    upstream = torch.linspace(-1, 2, tokens, device=DEVICE)
    upstream[::3] = 0
    with forced(route):
        check(inputs, upstream)


@pytest.mark.parametrize("route", ["fused", "products"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_everything_at_once(dtype, route):
    inputs = on_gpu(*problem(300, 256, 5003, bias=True, dtype=dtype))
    upstream, temperature = torch.linspace(-1, 2, 300, device=DEVICE), torch.rand(300, device=DEVICE) + 0.5
    with forced(route):
        check(inputs, upstream, 0.3 * upstream, temperature=temperature, logit_softcap=5.0)


@pytest.mark.parametrize("layout", ["slice of a larger buffer", "every second row", "column slice", "transposed"])
def test_weight_strides(layout):
    hidden, weight, targets, _ = on_gpu(*problem(130, 128, 1000, dtype=torch.bfloat16))
    view = {
        "slice of a larger buffer": lambda: torch.cat([weight + 1, weight, weight + 2])[1000:2000],
        "every second row": lambda: weight.repeat_interleave(2, dim=0)[::2],
        "column slice": lambda: torch.cat([weight + 1, weight], dim=1)[:, 128:],
        "transposed": lambda: weight.T.contiguous().T,
    }[layout]()
    check((hidden, view, targets), torch.ones(130, device=DEVICE))


def test_target_outside_the_vocabulary_is_nan():
    hidden, weight, targets, _ = on_gpu(*problem(40, 64, 500, dtype=torch.bfloat16))
    targets[3], targets[7] = 500, -100
    logprob = linear_logprob(hidden, weight, targets)
    assert logprob.isnan().nonzero().squeeze(1).tolist() == [3, 7]


def test_tf32_is_not_used_and_its_setting_is_left_alone():
    inputs = on_gpu(*problem(200, 512, 3000))
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        check(inputs, torch.ones(200, device=DEVICE))
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("route", ["fused", "products"])
def test_repeats_are_equal_bit_for_bit_also_on_streams_that_overlap(route):
    inputs = on_gpu(*problem(3000, 512, 32001, bias=True, dtype=torch.bfloat16))
    upstream = torch.linspace(-1, 1, 3000, device=DEVICE)
    with forced(route):
        results, grads = run(*inputs, upstream=upstream, backend="triton")
        expected = [*results, *grads]
        streams = [torch.cuda.Stream() for _ in range(4)]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        repeats = []
        for repeat in range(12):
            with torch.cuda.stream(streams[repeat % 4]):
                results, grads = run(*inputs, upstream=upstream, backend="triton")
                repeats.append([*results, *grads])
        torch.cuda.synchronize()
    for repeat in repeats:
        for one, other in zip(repeat, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("route", ["fused", "products"])
def test_more_logits_than_int32_counts(route):
    """16384 x 151936 = 2.5e9 logits; a sample of rows against float64."""
    hidden, weight, targets, _ = on_gpu(*problem(16384, 64, 151936, dtype=torch.bfloat16))
    rows = torch.tensor([0, 8191, 14134, 14135, 16383], device=DEVICE)
    upstream = torch.zeros(16384, device=DEVICE)
    upstream[rows] = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0], device=DEVICE)
    with forced(route):
        logprob = linear_logprob(hidden, weight, targets)
        _, (grad_hidden, _) = run(hidden, weight, targets, upstream=upstream + 1e-20, backend="triton")
    expected, (expected_grad, _) = run(
        hidden[rows].double(), weight.double(), targets[rows], upstream=upstream[rows], backend="reference"
    )
    assert (logprob[rows].double() - expected[0]).abs().max().item() <= 1e-5
    assert relative(grad_hidden[rows], expected_grad) <= GRADIENT_ERROR[torch.bfloat16]


def peak(function):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


@pytest.mark.parametrize("route", ["fused", "products"])
def test_memory(route):
    """The logits alone would be 9.3 GiB in float32; a frozen weight allocates no gradient."""
    hidden, weight, targets, _ = on_gpu(*problem(16384, 256, 151936, dtype=torch.bfloat16))
    hidden.requires_grad_()
    with forced(route):
        forward, logprob = peak(lambda: linear_logprob(hidden, weight, targets))
        backward, _ = peak(lambda: logprob.sum().backward())
        assert forward <= (32 << 20 if route == "fused" else 320 << 20)
        assert backward <= (650 << 20 if route == "fused" else 900 << 20)
        logprob = linear_logprob(hidden, weight, targets)
        dead, _ = peak(lambda: (logprob * 0.0).sum().backward())
    assert dead <= 32 << 20


def test_policy_loss_never_waits_for_the_device():
    lengths = [0, 5000, 1, 1024, 1025, 300] * 20
    count = len(lengths)
    arguments = on_gpu(
        *batch(lengths, [0.1, -0.1] * (count // 2), [1.0, -1.0] * (count // 2), own=[True, False, False] * (count // 3),
               dtype=torch.float32)
    )  # fmt: skip
    run_policy(arguments)
    token_logprobs = arguments[0].requires_grad_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss, _ = policy_loss(token_logprobs, *arguments[1:])
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_policy_loss(level):
    lengths = [0, 5000, 1, 1024, 1025, 300, 0] * 10
    count = len(lengths)
    own = level == "token" or [True, False] * (count // 2)
    arguments = batch(
        lengths, [0.1, -0.1, 0.01, 1e-4, -0.3] * (count // 5), [1.0, -1.0] * (count // 2), own=own, capability=0.7
    )
    source = arguments[0] + 0.1 * torch.randn(sum(lengths), generator=torch.Generator().manual_seed(0))
    options = {"level": level, "own_clip_low": 0.05, "own_clip_high": 0.05, "alpha": 2.0}
    single = on_gpu(*(tensor.float() if tensor.is_floating_point() else tensor for tensor in arguments))
    loss, stats, grad = run_policy(single, source_token_logprobs=source.float().to(DEVICE), **options)
    again = run_policy(single, source_token_logprobs=source.float().to(DEVICE), **options)
    assert torch.equal(loss, again[0]) and torch.equal(grad, again[2])
    expected = run_policy(arguments, source_token_logprobs=source.double(), backend="reference", **options)
    torch.testing.assert_close(loss.double().cpu(), expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad.double().cpu(), expected[2], rtol=1e-4, atol=1e-9)
    for actual, wanted in zip(stats, expected[1], strict=True):
        torch.testing.assert_close(actual.double().cpu(), wanted.double(), rtol=1e-4, atol=1e-5)


def policy_arguments(hidden, weight, targets, lengths):
    """The rest of linear_policy_loss's arguments: on policy up to a hundredth, every third response clipped."""
    with torch.no_grad():
        logprobs = linear_logprob(hidden, weight, targets)
    means = torch.stack([part.mean() for part in logprobs.split(lengths)])
    count = len(lengths)
    shift = torch.tensor([0.01, -0.01, -0.9], device=DEVICE).repeat(-(-count // 3))[:count]
    return {
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "source_mean_logprobs": means - shift,
        "advantages": torch.tensor([1.0, -2.0], device=DEVICE).repeat(-(-count // 2))[:count],
        "is_own": torch.tensor([True, False, False], device=DEVICE).repeat(-(-count // 3))[:count],
        "capability_ratio": torch.full((count,), 0.8, device=DEVICE),
        "own_clip_low": 0.2,
        "own_clip_high": 0.2,
        "cross_clip_upper": 1.2,
    }


@pytest.mark.parametrize("chunk_tokens", [None, 1000, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_linear_policy_loss(dtype, chunk_tokens):
    lengths = [400, 1, 350, 600, 149]
    hidden, weight, targets, _ = on_gpu(*problem(sum(lengths), 256, 5003, dtype=dtype))
    keywords = policy_arguments(hidden, weight, targets, lengths)
    results = []
    for convert, backend in ((False, "triton"), (False, "triton"), (True, "reference")):
        leaves = [
            tensor.detach().requires_grad_() for tensor in (as_float64(hidden, weight) if convert else (hidden, weight))
        ]
        rest = dict(zip(keywords, as_float64(*keywords.values()), strict=True)) if convert else dict(keywords)
        rest |= {"cu_seqlens": keywords["cu_seqlens"].to(DEVICE)} if convert else {"chunk_tokens": chunk_tokens}
        loss, token_logprobs, stats = linear_policy_loss(*leaves, targets, **rest, backend=backend)
        (3 * loss).backward()
        results.append((loss, token_logprobs, stats.live, leaves[0].grad, leaves[1].grad))
    for one, other in zip(*results[:2], strict=True):
        assert torch.equal(one, other)
    loss, token_logprobs, live, *grads = results[2]
    assert (results[0][1].double() - token_logprobs).abs().max().item() <= 1e-5
    assert torch.equal(results[0][2], live) and 0 < live.sum() < len(lengths)
    torch.testing.assert_close(results[0][0].double(), loss, rtol=1e-4, atol=1e-6)
    for actual, expected in zip(results[0][3:], grads, strict=True):
        assert relative(actual, expected) <= {**GRADIENT_ERROR, torch.float16: 6e-3}[dtype]


def test_linear_policy_loss_checks_boundaries_that_it_waits_for():
    hidden, weight, targets, _ = on_gpu(*problem(10, 64, 500, dtype=torch.bfloat16))
    keywords = policy_arguments(hidden, weight, targets, [4, 6])
    with pytest.raises(ValueError, match="cu_seqlens must end at the number of tokens 10, got 9"):
        linear_policy_loss(hidden, weight, targets, **keywords | {"cu_seqlens": torch.tensor([0, 4, 9], device=DEVICE)})


def test_linear_policy_loss_memory():
    """One chunk's exponentials and tiles, whatever the number of tokens."""
    lengths = [2048] * 8
    hidden, weight, targets, _ = on_gpu(*problem(sum(lengths), 256, 151936, dtype=torch.bfloat16))
    keywords = policy_arguments(hidden, weight, targets, lengths)
    hidden.requires_grad_()
    used, _ = peak(lambda: linear_policy_loss(hidden, weight, targets, **keywords)[0].backward())
    assert used <= 2200 << 20 < 16384 * 151936 * 2


def captured(step):
    """Runs `step` once eagerly on a side stream, then records it; returns the graph and what it returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs


@pytest.mark.parametrize("operator", ["linear_logprob", "policy_loss", "linear_policy_loss"])
def test_cuda_graph_of_forward_and_backward(operator):
    lengths = [200, 57, 255]
    first, second = (on_gpu(*problem(512, 256, 5003, dtype=torch.bfloat16, seed=seed)[:3]) for seed in (0, 1))
    hidden, weight, targets = (tensor.clone() for tensor in first)
    keywords = policy_arguments(*first, lengths)
    upstream = torch.linspace(-1, 1, 513, device=DEVICE)[:512] + 2
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight)]

    def step():
        if operator == "linear_logprob":
            loss = (linear_logprob(hidden, weight, targets) * upstream).sum()
        elif operator == "policy_loss":
            logprobs = (hidden.float() * 0.01).mean(1) + 0 * weight.float().sum()
            rest = {name: on_gpu(value)[0] for name, value in keywords.items() if name != "cu_seqlens"}
            loss = policy_loss(logprobs, cu_seqlens=boundaries, **rest)[0]
        else:
            loss = linear_policy_loss(hidden, weight, targets, **keywords)[0]
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    boundaries = keywords["cu_seqlens"].to(DEVICE)
    graph, outputs = captured(step)
    with torch.no_grad():
        for tensor, values in zip((hidden, weight, targets), second, strict=True):
            tensor.copy_(values)
    graph.replay()
    replayed = [output.clone() for output in outputs]
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(replayed, outputs, strict=True))  # nothing accumulates
    for one, other in zip(replayed, step(), strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-5)


def test_compile():
    hidden, weight, targets, _ = on_gpu(*problem(256, 128, 1003, dtype=torch.bfloat16))
    keywords = policy_arguments(hidden, weight, targets, [100, 156])
    keywords["cu_seqlens"] = keywords["cu_seqlens"].to(DEVICE)

    def total(hidden, weight):
        states = torch.tanh(hidden)
        logprob, entropy = linear_logprob(states, weight, targets, return_entropy=True)
        loss, _ = policy_loss(logprob, **keywords)
        return loss + linear_policy_loss(states, weight, targets, **keywords)[0] + 0.01 * entropy.mean()

    results = []
    for function in (total, torch.compile(total, fullgraph=True)):
        leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
        loss = function(*leaves)
        results.append([loss.detach(), *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-6, atol=1e-4)
