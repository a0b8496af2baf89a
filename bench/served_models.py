"""Random models of two sizes for benchmarks of the engines, written as Hugging Face folders without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

# As small as the demo's agents: the host decides. As large as SmolLM2-135M, with a smaller vocabulary.
SHAPES = {
    "0.1M": {
        "vocab_size": 64, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    },
    "116M": {
        "vocab_size": 16384, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    },
}  # fmt: skip


def write(folder: Path, size: str) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[size], tie_word_embeddings=True, bos_token_id=None, eos_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
