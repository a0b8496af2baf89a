"""Every built-in reward, asked through the processes that training asks."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_fast.tasks.math import last_boxed
from hacpo_fast.tasks.verifiers import last_number


@pytest.mark.parametrize(
    ("answer", "boxed"),
    [
        ("42", "42"),
        ("42", " 42 "),
        ("1/2", "\\frac{1}{2}"),
        ("$\\frac12$", "0.5"),
        ("\\frac{1}{2}", "\\dfrac{1}{2}"),
        ("Therefore \\boxed{\\frac{1}{2}}.", "\\tfrac{2}{4}"),
        ("-\\frac{\\sqrt{3}}{2}", "\\frac{-\\sqrt{3}}{2}"),
        ("\\sqrt{8}", "2\\sqrt{2}"),
        ("[0,1)", "\\left[0, 1\\right)"),
        ("(-\\infty, 2) \\cup (3, \\infty)", "(-\\infty,2)\\cup(3,\\infty)"),
        ("\\{1,2,3\\}", "\\{3, 2, 1\\}"),
        ("50\\%", "50\\%"),
        ("50\\%", "0.5"),
        ("1,234", "1234"),
        ("5\\text{ cm}", "5"),
        ("x^2+2x+1", "(x+1)^2"),
        ("x=5", "5"),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1 & 2 \\\\ 3 & 4\\end{bmatrix}"),
        ("\\text{Monday}", "Monday"),
        ("(1, -\\frac{2}{3})", "\\left(1,-\\frac{2}{3}\\right)"),
        ("90^\\circ", "90"),
        ("\\text{no mathematics: ein Bär}", "\\text{no mathematics: ein Bär}"),
        ("\U0001f642", "\U0001f642"),
    ],
)
def test_math_right(reward_of, answer, boxed):
    result = reward_of("math", f"First \\boxed{{wrong}}. No: \\boxed{{{boxed}}}.", answer)
    assert (result.value, result.error) == (1.0, None)


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("1/2", "\\boxed{\\frac{1}{3}}"),
        ("42", "The answer is 42."),
        ("42", "\\boxed{42} or rather \\boxed{43}"),
        ("42", "\\boxed{42"),
        ("42", "\\boxed{}"),
        ("42", "\\boxed{41 or 42}"),
        ("42", ""),
        ("[0,1)", "\\boxed{[0,1]}"),
        ("\\{1,2,3\\}", "\\boxed{\\{1,2\\}}"),
        ("x+1", "\\boxed{x-1}"),
        ("\\sqrt{2}", "\\boxed{1.414}"),
        ("Monday", "\\boxed{Tuesday}"),
        ("42", "\\boxed{" * 1000),
        ("42", "\\boxed{\\" + "{" * 5000 + "}" * 5000 + "}"),
    ],
)
def test_math_wrong(reward_of, answer, response):
    assert reward_of("math", response, answer).value == 0.0


def test_math_without_a_box(reward_of):
    for response in ("The answer is $\\frac12$.", "The answer is 0.5."):
        assert reward_of("math", response, "1/2").value == 0.0
        assert reward_of("math", response, "1/2", fallback=True).value == 1.0
    assert reward_of("math", "1/2, no: \\boxed{3}", "1/2", fallback=True).value == 0.0


def test_math_says_which_reference_answer_it_cannot_read(reward_of):
    assert "the reference answer is not mathematics: ''" in reward_of("math", "\\boxed{5}", "").error


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1}", "1"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}} and so on {}", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\left\\{x\\right.}", "\\left\\{x\\right."),
        ("\\boxed{1} \\boxed{2", "1"),
        ("\\boxed{\\boxed{1}}", "1"),
        ("\\boxed{a\\\\}", "a\\\\"),
        ("\\boxed 1", None),
        ("", None),
    ],
)
def test_last_boxed(text, inside):
    assert last_boxed(text) == inside


@given(st.text(), st.recursive(st.text("ab\\{ ", max_size=0), lambda inner: inner.map(lambda text: f"x{{{text}}}y")))
def test_balanced_braces_are_found(before, inside):
    assert last_boxed(before.replace("\\boxed{", "") + "\\boxed{" + inside + "}") == inside


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [(" yes\n", "yes", 1), ("Yes", "yes", 0), ("yes!", "yes", 0), ("", " ", 1), ("\U0001f642", "\U0001f642", 1)],
)
def test_exact(reward_of, response, answer, value):
    assert reward_of("exact", response, answer).value == value


def test_exact_without_case(reward_of):
    assert reward_of("exact", "STRASSE", "stra\u00dfe", ignore_case=True).value == 1.0


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        ("5 + 3 = 8", "8", 1),
        ("5 + 3 = 8 apples, not 9", "8", 0),
        ("So 10-3", "3", 1),
        ("x = -3", "-3", 1),
        ("x = \u22123.", "-3", 1),
        ("$1,234,567.50", "1234567.5", 1),
        ("1,2,3", "3", 1),
        ("3/4", "0.75", 1),
        ("\\frac{3}{4}", "3/4", 1),
        ("-\\dfrac{3}{4}", "-0.75", 1),
        ("1e3", "1000", 1),
        ("1e999999999", "1", 0),
        ("9" * 5000, "1", 0),
        ("1/0", "1", 0),
        ("about 0.333", "1/3", 0),
        ("none", "1", 0),
        ("1", "First 2 plus 2.\n#### 1", 1),
    ],
)
def test_numeric(reward_of, response, answer, value):
    assert reward_of("numeric", response, answer)[:2] == (value, None)


def test_numeric_tolerance(reward_of):
    assert reward_of("numeric", "about 0.333", "1/3", tolerance=0.01).value == 1.0
    assert reward_of("numeric", "about 0.3", "1/3", tolerance=0.01).value == 0.0


def test_numeric_says_which_reference_answer_has_no_number(reward_of):
    assert "has no number in it: 'a dozen'" in reward_of("numeric", "12", "a dozen").error


@given(st.fractions(max_denominator=10**6), st.integers())
def test_numbers_are_read_exactly(fraction, integer):
    assert last_number(f"It is {fraction}.") == fraction
    assert last_number(f"It is {integer:,}!") == integer
    assert last_number(f"= {float(integer % 10**6) / 8}") == Fraction(integer % 10**6, 8)


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        ("7+5=12;12-3=9;A9", "9", 1),
        ("A8 A9", "9", 1),
        ("A9 A8", "9", 0),
        ("A09", "9", 1),
        ("A-9", "-9", 1),
        ("9", "9", 0),
        ("A9", "x", 0),
    ],
)
def test_regex(reward_of, response, answer, value):
    assert reward_of("regex", response, answer, pattern="A(-?[0-9]+)").value == value


def test_regex_compares_text(reward_of):
    assert reward_of("regex", "<a>\u4e2d \U0001f642</a>", "\u4e2d \U0001f642", pattern="<a>(.*?)</a>").value == 1.0


ENTRY = {"question": "7 + 5 - 3 =", "metadata": {"expression": "7 + 5 - 3"}}


@pytest.mark.parametrize(
    ("response", "value"),
    [("<answer>8</answer> <answer>9</answer>", 1.0), ("<answer>It is 9</answer>", 1 / 7), ("9", 0.0)],
)
def test_reasoning_gym(reward_of, response, value):
    options = {"generator": "chain_sum", "pattern": "<answer>(.*?)</answer>"}
    assert reward_of("reasoning_gym", response, "9", ENTRY, **options)[:2] == (value, None)
