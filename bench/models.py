"""Random agents of a middle size for benchmarks on a CPU, written as Hugging Face folders that a run can train.

    python bench/models.py FOLDER [SIZE ...]

Every row of the vocabulary is a piece of ASCII text, so that what one agent samples is as long for the other. Random
weights hardly ever end a response: responses are as long as the run allows.
"""

from __future__ import annotations

import random
import string
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast, Qwen3Config

VOCABULARY = 32_768
# Parameters with 32k rows in a tied embedding, of which the embedding has 12.6, 16.8 and 16.8 million.
SHAPES: dict[str, tuple[type[PretrainedConfig], dict[str, int]]] = {
    "llama-20M": (LlamaConfig, {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 5}),
    "qwen3-28M": (Qwen3Config, {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4}),
    "llama-42M": (LlamaConfig, {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 9}),
}


def mid_size_agent(folder: Path, size: str = "llama-20M", vocabulary: int = VOCABULARY, seed: int = 0) -> Path:
    """Writes the model of SHAPES[size] and its tokenizer to `folder`, unless they are there. Returns the folder."""
    if (folder / "config.json").exists():
        return folder
    kind, shape = SHAPES[size]
    heads = shape["hidden_size"] // 64
    config = kind(
        **shape, vocab_size=vocabulary, num_attention_heads=heads, num_key_value_heads=max(1, heads // 4), head_dim=64,
        max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None, pad_token_id=None, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer(vocabulary, seed).save_pretrained(folder)
    return folder


def tokenizer(vocabulary: int, seed: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level BPE: all bytes, then pairs and triples of printable characters, in an order that `seed` decides."""
    printable, letters = string.digits + string.punctuation + string.ascii_letters, string.ascii_letters
    shuffle = random.Random(seed).shuffle
    pairs = [(a, b) for a in printable for b in printable]
    triples = [(a + b, c) for a in letters for b in letters for c in letters]
    shuffle(pairs)
    shuffle(triples)
    tokens = ["</s>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [*pairs, *triples][: vocabulary - len(tokens)]
    tokens += [a + b for a, b in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")


if __name__ == "__main__":
    for name in sys.argv[2:] or SHAPES:
        made = mid_size_agent(Path(sys.argv[1]) / name, name)
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(made).parameters())
        print(f"{made}: {parameters / 1e6:.1f}M parameters")
