"""The held-out side of a problem never changes."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_fast.tasks import is_held_out, split_held_out

TEXTS = [f"{a} + {b} =" for a in range(100) for b in range(100)]


def test_the_rule_itself():
    # Spelled out again: other programs hold out the same problems by the same rule, so it may never change.
    digest = hashlib.sha256(b"7+5-3=").digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    assert place == pytest.approx(0.5026199242093953)
    assert is_held_out("7+5-3=", place + 1e-9)
    assert not is_held_out("7+5-3=", place - 1e-9)
    assert not is_held_out("7+5-3=", place)


@given(st.text(st.characters(codec="utf-8")), st.floats(0, 1))
def test_white_space_does_not_matter(text, share):
    assert is_held_out(" \t\n\u3000".join(text), share) == is_held_out(text, share)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_the_share_is_kept(share):
    held_out = sum(is_held_out(text, share) for text in TEXTS)
    # Five standard deviations of a binomial draw; the hash is fixed, so this either always passes or never.
    assert abs(held_out - share * len(TEXTS)) < 5 * (len(TEXTS) * share * (1 - share)) ** 0.5


def test_none_and_all():
    assert not any(is_held_out(text, 0.0) for text in TEXTS)
    assert all(is_held_out(text, 1.0) for text in TEXTS)


def test_a_larger_share_holds_out_more_of_the_same():
    assert all(is_held_out(text, 0.3) for text in TEXTS if is_held_out(text, 0.2))


def test_split_keeps_every_problem_and_the_order(problem):
    problems = [problem("1", prompt=text) for text in TEXTS[:500]]
    training, held_out = split_held_out(problems, 0.2)
    assert sorted(training + held_out, key=problems.index) == problems
    assert training == [one for one in problems if not is_held_out(one.prompt, 0.2)]
    assert held_out == [one for one in problems if is_held_out(one.prompt, 0.2)]
    alone = split_held_out(problems[100:200], 0.2)[1]
    assert alone == [one for one in problems[100:200] if one in held_out]
