"""Tiny real models with tokenizers of different kinds, written as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

CHAT_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = ["What is the sum of 12 and 7? The answer is \\boxed{19}.", "ABBA 7+5=12;12-3=9;A9 naïve café 🙂 🙂"] * 4


def byte_tokenizer(
    merges: int = 0, bos: bool = False, pad_is_eos: bool = False, chat: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE with `merges` merges: it can write any text. `bos`: it puts <s> before what it encodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|end|>", "<pad>", "<|user|>", "<|system|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(special) + len(alphabet) + merges
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        pad_token="</s>" if pad_is_eos else "<pad>",
    )
    fast.chat_template = CHAT_TEMPLATE if chat else None
    return fast


def letter_tokenizer(letters: str) -> PreTrainedTokenizerFast:
    """One token per letter of `letters`; anything else is unknown to it."""
    vocabulary = {token: i for i, token in enumerate(["</s>", "<pad>", "<unk>", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("</s>", "<pad>", "<unk>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def config(architecture: str, vocabulary: int, **changes) -> PretrainedConfig:
    kind = {
        "llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config,
        "gemma2": Gemma2Config, "gemma3": Gemma3TextConfig, "phi3": Phi3Config,
    }[architecture]  # fmt: skip
    shape = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256, "tie_word_embeddings": True,
    }  # fmt: skip
    return kind(vocab_size=vocabulary, **{**shape, **changes})


def write_model(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    architecture: str = "llama",
    seed: int = 0,
    end_tokens: tuple[str, ...] = ("</s>",),
    **changes,
) -> Path:
    """Random weights, large enough that the model is far from uniform."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(architecture, len(tokenizer), **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
    ends = tokenizer.convert_tokens_to_ids(list(end_tokens))
    model.generation_config = GenerationConfig(eos_token_id=ends if len(ends) > 1 else ends[0])
    model.config.eos_token_id = ends[0]
    model.config.bos_token_id = model.config.pad_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
