"""The architectures of the two agents.

Heads of 32 are the smallest that vLLM serves. One key-value head for two query heads, tied embeddings and two model
families are there so that a trainer which handles these agents has met the layouts of the large ones.
"""

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def new_model(family: str, layers: int, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A float32 model of `family` ("qwen3" or "llama") with random weights that depend on `seed` only."""
    config_class, model_class = FAMILIES[family]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.06,  # the usual 0.02 suits wider layers; here it takes many more steps to learn
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    model.generation_config = GenerationConfig(
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model
