import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.config import AgentConfig
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.engine import Sample
from hacpo_fast.rollouts.records import record_rollouts
from hacpo_fast.rollouts.views import own_view, views_for

ENDS = ("</s>", "<|end|>")


def codec(tokenizer, ends=ENDS):
    return Codec(tokenizer, tokenizer.convert_tokens_to_ids(list(ends)), AgentConfig(model="m"))


BYTES = codec(tiny.byte_tokenizer())
MERGED = codec(tiny.byte_tokenizer(merges=60, bos=True, pad_is_eos=True))
LETTERS = codec(tiny.letter_tokenizer("0123456789+-=;A"), ends=("</s>",))


def rollout(source, some, tokens, ended):
    ids = np.array(some.tokenizer.convert_tokens_to_ids(tokens), dtype=np.int64)
    logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
    (record,) = record_rollouts(source, some, [[Sample(ids, logprobs, ended)]])
    return record


def see(record, some, learner=1, score_eos=True, room=100):
    (view,) = views_for(learner, [record], some, score_eos, [room], [True])
    return view


def test_own_ids_are_byte_for_byte_whatever_their_text_would_encode_to():
    record = rollout(1, MERGED, ["7", "+", "5", "=", "1", "2", "</s>"], True)  # merges would write it in fewer tokens
    assert len(MERGED.encode_texts([record.text])[0]) < 6
    view = see(record, MERGED)
    np.testing.assert_array_equal(view.token_ids, record.token_ids)
    assert view.source_mean_logprob == -4
    np.testing.assert_array_equal(view.source_logprobs, record.logprobs)


def test_the_end_token_is_on_neither_side_of_a_cross_response():
    record = rollout(0, BYTES, ["4", "2", "<|end|>"], True)
    view = see(record, MERGED)
    assert MERGED.decode([view.token_ids]) == ["42"]
    assert view.source_mean_logprob == -1.5  # of 4 and 2
    assert view.source_logprobs is None


def test_score_eos_false_leaves_the_end_out_of_own_responses_only_if_something_is_left():
    assert own_view(rollout(1, BYTES, ["4", "2", "</s>"], True), score_eos=False).source_mean_logprob == -1.5
    assert own_view(rollout(1, BYTES, ["</s>"], True), score_eos=False).source_mean_logprob == -1
    assert len(own_view(rollout(1, BYTES, ["4", "2"], False), score_eos=False).token_ids) == 2


@pytest.mark.parametrize("tokens", [["</s>"], ["<pad>", "<|end|>"], ["<pad>", "<pad>"]])
def test_responses_of_special_tokens_alone_are_the_empty_text(tokens):
    record = rollout(0, BYTES, tokens, tokens[-1] != "<pad>")
    view = see(record, MERGED)
    assert record.text == ""
    assert view.token_ids.tolist() == [MERGED.eos_id]
    assert view.source_mean_logprob == record.logprobs.mean()


def test_special_tokens_within_a_response_count_for_its_source_alone():
    record = rollout(0, BYTES, ["4", "<pad>", "2", "</s>"], True)
    assert record.text == "42"
    assert see(record, MERGED).source_mean_logprob == -2  # tokens 1 and 3
    assert own_view(record, score_eos=True).source_mean_logprob == -2.5  # all four


def test_a_text_that_the_learner_cannot_write_or_hold_is_not_scorable():
    record = rollout(0, BYTES, ["4", "x", "2", "</s>"], True)
    assert not see(record, LETTERS).scorable
    assert see(record, MERGED).scorable
    assert not see(record, MERGED, room=2).scorable


def test_a_response_cut_within_a_character_is_exchanged_as_what_it_shows():
    emoji = BYTES.encode_texts(["🙂"])[0]
    (record,) = record_rollouts(0, BYTES, [[Sample(emoji[:2], np.zeros(2, np.float32), False)]])
    view = see(record, MERGED)
    assert record.text == "\ufffd"
    assert MERGED.decode([view.token_ids]) == ["\ufffd"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(MERGED.tokenizer) - 1), min_size=1, max_size=12), st.booleans())
def test_anything_sampled_can_be_seen_by_another_tokenizer(ids, ended):
    ids = np.array(ids)
    (record,) = record_rollouts(0, MERGED, [[Sample(ids, np.full(len(ids), -0.5, np.float32), ended)]])
    view = see(record, BYTES)
    assert view.source_mean_logprob == -0.5
    assert len(view.token_ids) >= 1
    if record.text:
        assert BYTES.decode([view.token_ids]) == [record.text]
