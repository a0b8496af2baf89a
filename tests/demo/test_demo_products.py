"""The second task: the generator's expressions, right answers, and the trainer's held-out side."""

import random

import reasoning_gym

from hacpo_fast.demo.tokenizers import KINDS
from hacpo_fast.demo.worked import HELD_OUT_SHARE, TASKS, Habits, answer, is_correct, prompt, respond, split
from hacpo_fast.tasks.holdout import is_held_out

TASK = TASKS["products"]


def test_expressions_and_answers_are_those_of_reasoning_gym():
    data = reasoning_gym.create_dataset(
        "products", min_terms=3, max_terms=3, min_digits=1, max_digits=1, size=4000, seed=3
    )
    met = set()
    for row in data:
        expression = row["metadata"]["expression"].replace(" ", "")
        met.add(expression)
        assert answer(TASK, expression) == int(row["answer"])
        assert is_correct(respond(TASK, expression), int(row["answer"]))
    assert met <= set(TASK.expressions()) and len(TASK.expressions()) == 1000
    assert len(met) > 950


def test_worked_answers_and_their_slips():
    assert respond(TASK, "7*5*3") == "7*5=35;35*3=105;A105"
    assert respond(TASK, "0*5*9") == "0*5=0;0*9=0;A0"
    first, second, result = respond(TASK, "7*5*3", Habits(wrong_step=1.0), random.Random(0)).split(";")
    total = int(first.removeprefix("7*5="))
    assert 1 <= abs(total - 35) <= 2 and second.startswith(f"{total}*3=")
    assert 1 <= abs(int(second.split("=")[1]) - 3 * total) <= 2
    assert result == "A" + second.split("=")[1]


def test_both_tokenizers_can_write_every_answer_and_slip():
    rng = random.Random(0)
    for make in KINDS.values():
        tokenizer = make(TASK.alphabet, TASK.largest)
        for expression in TASK.expressions()[::3]:
            text = prompt(expression) + respond(TASK, expression, Habits(wrong_step=0.5), rng)
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text


def test_sides_are_disjoint_and_the_trainers():
    seen, held_out = split(TASK)
    assert sorted(seen + held_out) == sorted(TASK.expressions())
    assert abs(len(held_out) / 1000 - HELD_OUT_SHARE) < 0.03
    for expression in held_out:
        assert is_held_out(expression.replace("*", " * ") + " =", HELD_OUT_SHARE)
