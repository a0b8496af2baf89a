"""The tokenizer of a model folder, as the folder's own file says."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

TEXTS = (
    "The answer to 12 + 7 is 19.",
    "  def f(x):\n    return x*2\n\n",
    "7+5=12;12-3=9;A9",
    "it's naïve 你好 🙂 1234567",
)


def load_tokenizer(place: str, **origin: Any) -> tuple[PreTrainedTokenizerBase, str | None]:
    """The tokenizer at `place` (a folder or hub name), and a note where transformers by itself would load another one.

    transformers takes the tokenizer class that it knows for the model's type (5.24: Qwen2Tokenizer for qwen2), which
    may build its own rules for splitting text beside the vocabulary of the folder's tokenizer.json. The weights were
    trained with what the file says, so a difference is decided in favour of the file.
    """
    tokenizer = AutoTokenizer.from_pretrained(place, **origin)
    revision = origin.get("revision")
    path = cached_file(place, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    if path is None or origin.get("trust_remote_code"):  # code that came with the model may know better
        return tokenizer, None
    file = Tokenizer.from_file(path)
    file.no_truncation()
    file.no_padding()
    if _agree(tokenizer, file):
        return tokenizer, None
    as_written = PreTrainedTokenizerFast.from_pretrained(place, **origin)
    if not _agree(as_written, file):  # then it is tokenizer_config.json that says otherwise, on purpose
        return tokenizer, None
    return as_written, (
        f"{place}: transformers loads its tokenizer as a {type(tokenizer).__name__}, which does not encode like the "
        "tokenizer.json there; the file is used here. Whoever uses the trained agent must do the same: "
        "PreTrainedTokenizerFast.from_pretrained(folder), not AutoTokenizer"
    )


def _agree(tokenizer: PreTrainedTokenizerBase, file: Tokenizer) -> bool:
    for text in TEXTS:
        ids = file.encode(text, add_special_tokens=False).ids
        if tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
            return False
        if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != file.decode(ids, skip_special_tokens=False):
            return False
    return True
