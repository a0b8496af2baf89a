"""Tiny models of many architectures, and what each computes for one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import transformers as hf
from torch import Tensor

from hacpo_fast.policy.batch import TokenPair

VOCABULARY = 61
SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,  # large enough for attention to matter: a leak must show
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
LAYER_TYPES = ["sliding_attention", "full_attention"]

BUILDERS: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE, tie_word_embeddings=True)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZE)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZE, tie_word_embeddings=True)),
    "mistral_window": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZE, sliding_window=5)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SIZE)),
    "gemma2_window_softcap": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(
            **SIZE,
            sliding_window=5,
            layer_types=LAYER_TYPES,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            query_pre_attn_scalar=9,
        )
    ),
    "gemma3_window": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**SIZE, sliding_window=5, layer_types=LAYER_TYPES, query_pre_attn_scalar=9)
    ),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZE)),
    "gpt2_learned_positions": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.15)
    ),
    "granite_scaled_logits": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**SIZE, logits_scaling=3.0)),
    "cohere_scaled_logits": lambda: hf.CohereForCausalLM(hf.CohereConfig(**SIZE, logit_scale=0.25)),
}


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> hf.PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BUILDERS[name]()
        # Norms and biases start as constants, which would hide a head that forgets its bias.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn(parameter.shape)
    return model.to(dtype).eval()


def sequences(count: int = 8, longest: int = 14, seed: int = 0) -> list[TokenPair]:
    """Prompts of 1 to `longest` tokens, responses of 0 to `longest`; an empty and a one-token response among them."""
    generator = np.random.default_rng(seed)
    prompts = generator.integers(1, longest + 1, size=count)
    responses = generator.integers(2, longest + 1, size=count)
    prompts[0], responses[1 % count], responses[2 % count] = 1, 0, 1
    return [
        (generator.integers(VOCABULARY, size=prompt), generator.integers(VOCABULARY, size=response))
        for prompt, response in zip(prompts, responses, strict=True)
    ]


def single_logprobs(model: hf.PreTrainedModel, pairs: list[TokenPair], temperature: float = 1.0) -> Tensor:
    """[R] response log-probs by the model's own plain forward pass, one sequence at a time."""
    results = []
    for prompt, response in pairs:
        prompt, response = torch.from_numpy(prompt), torch.from_numpy(response)
        ids = torch.cat([prompt, response[:-1]]).unsqueeze(0)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :][: len(response)]
        results.append((logits.float() / temperature).log_softmax(-1).gather(-1, response[:, None])[:, 0])
    return torch.cat(results)


def weights(rows: int) -> Tensor:
    """[rows] upstream gradients of either sign."""
    return torch.randn(rows, generator=torch.Generator().manual_seed(7))


def gradients(model: hf.PreTrainedModel) -> dict[str, Tensor]:
    """A copy of every gradient; clears them."""
    taken = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return taken


def assert_same_gradients(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(
            other[name], gradient, rtol=tolerance, atol=tolerance * max(1.0, gradient.abs().max().item()), msg=name
        )
