import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.config import AgentConfig
from hacpo_fast.errors import UserError
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.tasks.problems import Problem

TEXTS = ["", "42", "naïve café", "🙂🙂", "日本語\n\tx", "</s>", "<|end|>7", "  two  spaces ", "\ufffd"]


def problem(prompt="2+2="):
    return Problem("0", prompt, ({"role": "user", "content": prompt},), "4", {})


def codec(tokenizer, ends=("</s>",), **settings):
    return Codec(tokenizer, tokenizer.convert_tokens_to_ids(list(ends)), AgentConfig(model="m", **settings))


BYTES, MERGED = codec(tiny.byte_tokenizer()), codec(tiny.byte_tokenizer(merges=60, bos=True, pad_is_eos=True))


@pytest.mark.parametrize("some", [BYTES, MERGED])
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_and_cannot_end_itself(some, text):
    (ids,) = some.encode_texts([text])
    assert some.decode([ids]) == [text]
    assert not set(ids.tolist()) & some.end_ids
    assert some.exchanged(ids).all()  # no special token either: no BOS was added


@settings(deadline=None)
@given(st.text())
def test_any_text_survives(text):
    assert MERGED.decode(MERGED.encode_texts([text])) == [text]


def test_a_text_that_the_tokens_cannot_write_is_refused():
    letters = codec(tiny.letter_tokenizer("0123456789+-=;A"))
    good, bad = letters.encode_texts(["7+5=12;A12", "7+5=zwölf"])
    assert letters.decode([good]) == ["7+5=12;A12"] and bad is None


@pytest.mark.parametrize("text", ["12", " 12", "1 2", "", "\n1"])
def test_behind_a_prompt_nothing_is_put_before_a_text(text):
    some = codec(tiny.sentence_tokenizer("0123456789+="))
    (ids,) = some.encode_texts([text])
    (prompt,) = some.encode_prompts([problem("7+5=")])
    whole = some.tokenizer.decode([*prompt, *ids], clean_up_tokenization_spaces=False)
    assert whole == "7+5=" + text
    assert some.decode([ids]) == [text]


def test_special_tokens_are_not_exchanged():
    tokenizer = tiny.byte_tokenizer()
    some = codec(tokenizer, ends=("</s>", "<|end|>"))
    ids = np.array(tokenizer.convert_tokens_to_ids(["<pad>", "4", "2", "<|assistant|>", "<|end|>"]))
    assert some.exchanged(ids).tolist() == [False, True, True, False, False]
    assert some.decode([ids[some.exchanged(ids)]]) == ["42"]


def test_one_bos_in_plain_and_in_chat_prompts():
    for options in ({"chat": False}, {"chat": True}):
        tokenizer = tiny.byte_tokenizer(bos=True, **options)
        (ids,) = codec(tokenizer).encode_prompts([problem()])
        assert ids.tolist().count(tokenizer.bos_token_id) == 1
        assert ids[0] == tokenizer.bos_token_id


def test_prompt_formats():
    tokenizer = tiny.byte_tokenizer(chat=True)
    (chat,) = codec(tokenizer).encode_prompts([problem()])
    assert tokenizer.decode(chat) == "<|user|>2+2=<|end|><|assistant|>"
    (plain,) = codec(tokenizer, prompt_format="plain", prompt_template="Q: {prompt} A:").encode_prompts([problem()])
    assert tokenizer.decode(plain) == "Q: 2+2= A:"


def test_an_end_token_that_the_tokenizer_adds_is_taken_off_the_prompt():
    from tokenizers import processors

    tokenizer = tiny.byte_tokenizer()
    end = tokenizer.eos_token_id
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", end)]
    )
    assert tokenizer("2")["input_ids"][-1] == end
    (ids,) = codec(tokenizer).encode_prompts([problem("2")])
    assert tokenizer.decode(ids) == "2"


def test_chat_without_template_and_model_without_end_token():
    with pytest.raises(UserError, match="no chat template; use prompt_format=plain"):
        codec(tiny.byte_tokenizer(), prompt_format="chat")
    with pytest.raises(UserError, match="names an end token"):
        Codec(tiny.byte_tokenizer(), [], AgentConfig(model="m"))
