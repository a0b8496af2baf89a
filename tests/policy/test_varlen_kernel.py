"""torch's variable-length kernel on a GPU, against one call for each sequence."""

from __future__ import annotations

import numpy as np
import policy_models as tiny
import pytest
import torch

from hacpo_fast.policy import attention
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.policy import Policy

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("value_width", [64, 32])
@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_kernel(kv_heads, window, value_width):
    cu = torch.tensor([0, 100, 101, 357, 500], dtype=torch.int32, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    heads = [(4, 64), (kv_heads, 64), (kv_heads, value_width)]
    inputs = [torch.randn(1, head, 500, width, generator=generator, device="cuda") for head, width in heads]
    upstream = torch.randn(1, 500, 4, value_width, generator=generator, device="cuda")
    exact = [tensor.clone().requires_grad_() for tensor in inputs]
    half = [tensor.bfloat16().requires_grad_() for tensor in inputs]
    assert attention._has_varlen_kernel(half[0], half[2]) and not attention._has_varlen_kernel(exact[0], exact[2])
    expected = attention._per_segment(*exact, cu, 0.2, window, None)
    output = attention._fused(*half, cu, 256, 0.2, window)
    torch.testing.assert_close(output.float(), expected, rtol=2e-2, atol=2e-2)
    (expected * upstream).sum().backward()
    (output * upstream).sum().backward()
    for one, other in zip(half, exact, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, rtol=5e-2, atol=5e-2 * other.grad.abs().max().item())


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral_window", "gemma2_window_softcap", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models(name, dtype):
    pairs = tiny.sequences()
    policy = Policy(tiny.build(name, dtype=dtype).cuda(), gradient_checkpointing=True)
    policy.verify()
    logprobs = policy.token_logprobs(PackedBatch.build(pairs, "cuda"))
    logprobs.sum().backward()
    expected = tiny.single_logprobs(tiny.build(name), pairs)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    assert (logprobs.cpu() - expected).abs().mean() < tolerance


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral_window", "gemma2_window_softcap", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shared_prompts(name, dtype):
    """The probe compares log-probs and gradients with unshared ones; here log-probs are held against the CPU."""
    prompt, other = (np.arange(length) % tiny.VOCABULARY for length in (12, 5))
    pairs = [(prompt, prompt[:length]) for length in (9, 1, 4)] + [(other, prompt[:6]), (other, prompt[:2])]
    policy = Policy(tiny.build(name, dtype=dtype).cuda(), gradient_checkpointing=True)
    policy.share_prompts()
    batch = PackedBatch.build(pairs, "cuda", np.array([0, 0, 0, 1, 1]))
    logprobs = policy.token_logprobs(batch)
    logprobs.sum().backward()
    assert len(batch.input_ids) < batch.sequence_tokens
    expected = tiny.single_logprobs(tiny.build(name), pairs)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    assert (logprobs.cpu() - expected).abs().mean() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_copies_of_a_prompt(dtype):
    """The same at every call, and those of float32 on the CPU."""
    pairs = [(np.arange(50), np.arange(length)) for length in (30, 70, 1, 20)]
    batch = PackedBatch.build(pairs, "cuda", np.zeros(4, np.int64))
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(batch.sequence_tokens, 4, 64, generator=generator)
    whole = batch.shared.whole
    expected = torch.zeros(len(batch.input_ids), 4, 64).index_add_(0, whole.index.cpu(), upstream)
    first, second = (whole.sums(upstream.cuda().to(dtype)) for _ in range(2))
    assert torch.equal(first, second)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(first.float().cpu(), expected, rtol=tolerance, atol=tolerance)
