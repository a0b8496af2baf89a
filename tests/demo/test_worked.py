"""What the agents are taught: right when it should be, wrong as often as it should be, and never what is held out."""

import random

import pytest
import reasoning_gym

from hacpo_fast.demo.worked import HELD_OUT_SHARE, TASKS, Habits, answer, is_correct, prompt, respond, split
from hacpo_fast.tasks.holdout import is_held_out

TASK = TASKS["chain_sum"]


def test_answers_agree_with_reasoning_gym():
    data = reasoning_gym.create_dataset(
        "chain_sum", min_terms=3, max_terms=3, min_digits=1, max_digits=1, size=1000, seed=3
    )
    known = set(TASK.expressions())
    assert len(known) == 4000
    for row in data:
        expression = row["metadata"]["expression"].replace(" ", "")
        assert expression in known
        assert answer(TASK, expression) == int(row["answer"])
        assert is_correct(respond(TASK, expression), int(row["answer"]))


@pytest.mark.parametrize(
    "expression, text",
    [("7+5-3", "7+5=12;12-3=9;A9"), ("3-5+4", "3-5=-2;-2+4=2;A2"), ("0-9-9", "0-9=-9;-9-9=-18;A-18")],
)
def test_worked_answer(expression, text):
    assert respond(TASK, expression) == text


def test_every_number_fits_the_alphabet_and_the_largest():
    for expression in TASK.expressions():
        text = prompt(expression) + respond(TASK, expression)
        assert set(text) <= set(TASK.alphabet)
        assert answer(TASK, expression) <= TASK.largest


def test_a_skipped_working_leaves_the_answer_alone():
    assert respond(TASK, "7+5-3", Habits(skip_working=1.0), random.Random(0)) == ";A9"


def test_a_wrong_step_is_carried_along():
    first, second, result = respond(TASK, "7+5-3", Habits(wrong_step=1.0), random.Random(0)).split(";")
    total = first.removeprefix("7+5=")
    assert 1 <= abs(int(total) - 12) <= 2
    assert second.startswith(f"{total}-3=")
    written = int(second.split("=")[1])
    assert 1 <= abs(written - (int(total) - 3)) <= 2
    assert result == f"A{written}"


def test_habits_are_as_frequent_as_they_say():
    rng = random.Random(0)
    texts = [respond(TASK, "7+5-3", Habits(skip_working=0.3, wrong_step=0.2), rng) for _ in range(4000)]
    working = [text for text in texts if not text.startswith(";")]
    assert len(working) / 4000 == pytest.approx(0.7, abs=0.03)
    assert sum(text == "7+5=12;12-3=9;A9" for text in working) / len(working) == pytest.approx(0.64, abs=0.04)


@pytest.mark.parametrize("text", ["A9", "7+5=12;12-3=9;A9;", ";A19", ";A-9", "", "9", ";A9 ", ";A9<eos>"])
def test_incorrect(text):
    assert not is_correct(text, 9)


def test_sides_are_disjoint_and_the_trainers():
    seen, held_out = split(TASK)
    assert not set(seen) & set(held_out)
    assert sorted(seen + held_out) == sorted(TASK.expressions())
    assert len(held_out) / 4000 == pytest.approx(HELD_OUT_SHARE, abs=0.02)
    for side, out in ((seen, False), (held_out, True)):
        for expression in side:
            asked = " ".join(expression) + " ="  # as the trainer asks it
            assert is_held_out("".join(asked.split()), HELD_OUT_SHARE) is out
