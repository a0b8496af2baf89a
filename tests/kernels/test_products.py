"""Products in the precision the operators promise, whatever the caller has switched on for its own."""

from __future__ import annotations

import pytest
import torch

from hacpo_kernels import linear_logprob
from hacpo_kernels.products import accumulate, exact, multiply

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def default_precision():
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("interface", ["old", "oldest", "new", "new, everywhere", "none"])
def test_exact_lifts_reduced_precision_and_puts_it_back(interface):
    if interface == "old":
        torch.set_float32_matmul_precision("medium")
    elif interface == "oldest":
        MATMUL.allow_tf32 = True
    elif interface == "new":
        MATMUL.fp32_precision = "tf32"
    elif interface == "new, everywhere":
        torch.backends.fp32_precision = "tf32"
    flags = (MATMUL, torch.backends.mkldnn.matmul)
    before = [flag.fp32_precision for flag in flags]
    with exact("cpu"):
        assert all(flag.fp32_precision in ("none", "ieee") for flag in flags)
        assert MATMUL.allow_tf32 is False  # raises where the two interfaces disagree, as products on a GPU would
    assert [flag.fp32_precision for flag in flags] == before
    torch.backends.fp32_precision = "none"
    if interface.startswith("old"):
        assert torch.get_float32_matmul_precision() == {"old": "medium", "oldest": "high"}[interface]


def test_reduced_precision_does_not_reach_the_logits():
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(20, 256), torch.randn(100, 256), torch.arange(20)
    expected = linear_logprob(hidden, weight, targets)
    torch.set_float32_matmul_precision("medium")
    assert torch.equal(linear_logprob(hidden, weight, targets), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_sum_in_float32(dtype):
    left, right = (torch.randn(4, 2000, dtype=torch.float64).to(dtype) for _ in range(2))
    out, expected = torch.empty(4, 4), left.double() @ right.double().T
    multiply(left, right.T, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
    accumulate(out, left, right.T, first=False)
    torch.testing.assert_close(out.double(), 2 * expected, rtol=1e-5, atol=1e-4)
    accumulate(out, left, right.T, first=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
