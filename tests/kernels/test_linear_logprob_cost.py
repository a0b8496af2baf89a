"""linear_logprob: what it must not spend, counted in operations and bytes.

A custom operator is opaque to dispatch modes, so the counts are taken on the backend's own functions, and the memory of
the public operator from the peak of a fresh process.
"""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest
import torch
from live_bytes import LiveBytes
from torch.utils.flop_counter import FlopCounterMode

from hacpo_kernels.arguments import Head, Needs, RowGradients
from hacpo_kernels.torch import linear_logprob as torch_backend

TOKENS, WIDTH, VOCAB = 600, 16, 2000
ONE_PASS = 2 * TOKENS * WIDTH * VOCAB
TILE = torch_backend.TileLimit(rows=256, bytes=64 << 10)


@pytest.fixture(autouse=True)
def small_tiles():
    with mock.patch.object(torch_backend, "CPU_TILE", TILE):
        yield


def problem(dtype=torch.float32):
    torch.manual_seed(0)
    hidden, weight = torch.randn(TOKENS, WIDTH).to(dtype), torch.randn(VOCAB, WIDTH).to(dtype)
    return hidden, weight, torch.randint(VOCAB, (TOKENS,))


def backward(grad_logprob, mode, *, hidden=True, weight=True, bias=False, dtype=torch.float32):
    """The gradients, from a backward pass that runs under `mode`."""
    inputs = (*problem(dtype), torch.zeros(VOCAB))
    head = Head(*inputs, 1.0, None)
    _, logsumexp, _ = torch_backend.forward(head, False)
    if isinstance(mode, LiveBytes):
        mode.ignore(grad_logprob, *inputs, logsumexp)
    with mode:
        rows = RowGradients(grad_logprob, None, logsumexp, None)
        return torch_backend.backward(head, rows, Needs(hidden, weight, bias))


def backward_flops(grad_logprob, **needs):
    # The in-place product is not in the counter's own table.
    products = {torch.ops.aten.addmm_: lambda _, left, right, **kwargs: 2 * left[0] * left[1] * right[1]}
    counter = FlopCounterMode(display=False, custom_mapping=products)
    backward(grad_logprob, counter, **needs)
    return counter.get_total_flops()


def test_forward_is_one_pass():
    with FlopCounterMode(display=False) as counter:
        torch_backend.forward(Head(*problem(), None, 1.0, None), True)
    assert counter.get_total_flops() == ONE_PASS


def test_backward_is_a_recomputation_and_one_product_per_wanted_gradient():
    ones = torch.ones(TOKENS)
    assert backward_flops(ones) == 3 * ONE_PASS
    assert backward_flops(ones, weight=False) == 2 * ONE_PASS
    assert backward_flops(ones, hidden=False) == 2 * ONE_PASS
    assert backward_flops(ones, hidden=False, weight=False, bias=True) == ONE_PASS


@pytest.mark.parametrize("live", [0, 1, 257, TOKENS])
def test_backward_works_on_live_rows_only(live):
    grad = torch.zeros(TOKENS)
    grad[torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))[:live]] = 1e-30
    assert backward_flops(grad) * TOKENS == 3 * ONE_PASS * live


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward_holds_no_logits(dtype):
    inputs = problem(dtype)
    with LiveBytes() as memory:
        memory.ignore(*inputs)
        kept = torch_backend.forward(Head(*inputs, None, 1.0, None), False)
    assert memory.biggest <= max(TILE.bytes, TOKENS * WIDTH * 4)
    assert memory.peak <= 4 * TILE.bytes < TOKENS * VOCAB * 4 / 10
    assert [None if tensor is None else tensor.shape for tensor in kept] == [(TOKENS,), (TOKENS,), None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weight", [True, False])
def test_backward_holds_no_logits_and_no_gradient_of_a_frozen_weight(weight, dtype):
    memory = LiveBytes()
    backward(torch.ones(TOKENS), memory, weight=weight, dtype=dtype)
    grad_weight = VOCAB * WIDTH * dtype.itemsize
    assert memory.biggest <= max(TILE.bytes, grad_weight if weight else 0)
    assert memory.peak <= 4 * TILE.bytes + (grad_weight if weight else 0)
    assert weight or memory.peak < TOKENS * VOCAB * 4 / 10


def test_nothing_but_zeros_when_no_row_is_live():
    memory = LiveBytes()
    grads = backward(torch.zeros(TOKENS), memory, weight=False)
    assert not grads[0].any() and grads[1] is None
    assert memory.peak <= 2 * TOKENS * WIDTH * 4


PEAK_SCRIPT = """
import resource, torch
from hacpo_kernels import linear_logprob

def step(tokens):
    hidden, weight = torch.randn(tokens, 8, requires_grad=True), torch.randn(16384, 8, requires_grad=True)
    logprob, entropy = linear_logprob(hidden, weight, torch.randint(16384, (tokens,)), return_entropy=True)
    (logprob.sum() + entropy.sum()).backward()

torch.set_num_threads(1)
step(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(3000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_peak_of_a_fresh_process():
    """Two tiles of 16 MiB and small change, where the logits alone would be 188 MiB."""
    output = subprocess.run([sys.executable, "-c", PEAK_SCRIPT], capture_output=True, text=True, check=True)
    assert int(output.stdout) < 64 << 10  # KiB
