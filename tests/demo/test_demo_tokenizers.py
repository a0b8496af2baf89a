"""The two tokenizers: nothing lost, nothing added, and different from each other."""

import pytest
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from hacpo_fast.demo.tokenizers import KINDS
from hacpo_fast.demo.worked import TASKS, prompt, respond

TASK = TASKS["chain_sum"]


@pytest.fixture(scope="module", params=sorted(KINDS))
def tokenizer(request, tmp_path_factory):
    """As it comes back from its folder, which is how everyone but the demo meets it."""
    folder = tmp_path_factory.mktemp(request.param)
    KINDS[request.param](TASK.alphabet, TASK.largest).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_every_text_comes_back(tokenizer):
    for expression in TASK.expressions()[::7]:
        for text in (prompt(expression), respond(TASK, expression), prompt(expression) + respond(TASK, expression)):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
            assert tokenizer.decode(ids) == text
            assert tokenizer(text)["input_ids"] == ids


def test_spaces_do_not_matter(tokenizer):
    assert tokenizer("7 + 5 - 3 =")["input_ids"] == tokenizer("7+5-3=")["input_ids"]


def test_prompt_and_response_do_not_merge(tokenizer):
    joined = tokenizer("7+5-3=7+5=12;12-3=9;A9")["input_ids"]
    assert joined == tokenizer("7+5-3=")["input_ids"] + tokenizer("7+5=12;12-3=9;A9")["input_ids"]


def test_special_tokens(tokenizer):
    assert tokenizer.bos_token is None
    assert None not in (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    ids = [*tokenizer("A9")["input_ids"], tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "A9"
    assert tokenizer.padding_side == "left"


def test_unknown_characters_are_marked(tokenizer):
    assert tokenizer("7x")["input_ids"] == [tokenizer.convert_tokens_to_ids("7"), tokenizer.unk_token_id]


def test_token_by_token_decoding(tokenizer):
    text = "7+5=12;12-3=9;A9"
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer.backend_tokenizer, token) for token in tokenizer(text)["input_ids"]]
    assert "".join(piece or "" for piece in pieces) == text


def test_numbers():
    characters, pairs = (KINDS[kind](TASK.alphabet, TASK.largest) for kind in ("characters", "digit_pairs"))
    assert characters.tokenize("-12+3") == ["-", "1", "2", "+", "3"]
    assert pairs.tokenize("-12+3") == ["-", "12", "+", "3"]
    assert pairs.tokenize("9+28") == ["9", "+", "2", "8"]
    assert (len(characters), len(pairs)) == (18, 36)
