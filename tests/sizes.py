"""Configurations of the paper's models, as published on the hub, for what can be said of them without their weights."""

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int, tied: bool) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=151936, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=8, head_dim=128, intermediate_size=intermediate, tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )  # fmt: skip


def _llama(hidden: int, layers: int, heads: int, head_dim: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=128256, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=8, head_dim=head_dim, intermediate_size=8192, tie_word_embeddings=True,
        max_position_embeddings=131072,
    )  # fmt: skip


MODELS: dict[str, PretrainedConfig] = {
    "Qwen/Qwen3-0.6B-Base": _qwen3(1024, 28, 16, 3072, True),
    "Qwen/Qwen3-1.7B-Base": _qwen3(2048, 28, 16, 6144, True),
    "Qwen/Qwen3-4B-Base": _qwen3(2560, 36, 32, 9728, True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, True),
    "Qwen/Qwen3-4B-Instruct-2507": _qwen3(2560, 36, 32, 9728, True),
    "Qwen/Qwen3-8B-Base": _qwen3(4096, 36, 32, 12288, False),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(2048, 16, 32, 64),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(3072, 28, 24, 128),
}
"""By name on the hub."""
