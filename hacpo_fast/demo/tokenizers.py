"""Two tokenizers over one alphabet: single characters, and byte-pair merges that join two-digit numbers.

Both drop white space before they encode, so `7 + 5 - 3 =` and `7+5-3=` are the same tokens, and both decode by plain
concatenation, so a text without white space comes back as it was. Neither adds a token of its own.
"""

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from tokenizers.normalizers import Replace
from transformers import PreTrainedTokenizerFast

SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}


def characters(alphabet: str, largest: int) -> PreTrainedTokenizerFast:
    """One token for each character; numbers have no tokens of their own, however large."""
    return _byte_pairs(alphabet, merges=[])


def digit_pairs(alphabet: str, largest: int) -> PreTrainedTokenizerFast:
    """One token for each character and for each number from 10 to `largest` (at most 99)."""
    return _byte_pairs(alphabet, merges=[tuple(str(number)) for number in range(10, largest + 1)])


def _byte_pairs(alphabet: str, merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    tokens = [*SPECIAL.values(), *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = Replace(Regex(r"\s+"), "")
    tokenizer.decoder = Fuse()
    # Left padding: generation continues a batch of prompts at their right ends.
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", clean_up_tokenization_spaces=False, **SPECIAL
    )


KINDS = {"characters": characters, "digit_pairs": digit_pairs}
"""Makers of tokenizers, given a task's alphabet and its largest number."""
