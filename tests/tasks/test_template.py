"""Templates read the row and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.template import Template

ROW = {
    "question": "7 + 5?",
    "metadata": {"expression": "7 + 5", "deep": {"er": ["a", "b"]}, 3: "three"},
    "numbers": [4, 5],
    "my column": "spaces",
    "a.b": "dots",
    "nothing": None,
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{question}", "7 + 5?"),
        ("{metadata[expression]} =", "7 + 5 ="),
        ("{metadata[deep][er][1]}", "b"),
        ("{metadata[3]}", "three"),
        ("{numbers[0]}/{numbers[1]}", "4/5"),
        ("{my column} {a.b}", "spaces dots"),
        ("Q: {question}\nPut it in \\boxed{{}}.", "Q: 7 + 5?\nPut it in \\boxed{}."),
        ("no field", "no field"),
        ("", ""),
        ("\u4f60\u597d {question} \U0001f642", "\u4f60\u597d 7 + 5? \U0001f642"),
    ],
)
def test_fills_in(template, text):
    assert Template(template).fill(ROW) == text


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{questoin}", "did you mean 'question'?"),
        ("{x}", "There are: question, metadata, numbers, my column, a.b, nothing"),
        ("{metadata[expresion]}", "did you mean 'expression'?"),
        ("{metadata[deep][no]}", "{metadata[deep][no]}"),
        ("{numbers[2]}", "there are 2 items"),
        ("{numbers[-1]}", "there are 2 items"),
        ("{question[0]}", "{question} is a str, which has no parts"),
        ("{question.__class__}", "no field {question.__class__}"),
        ("{nothing}", "the field {nothing} of the template '{nothing}' is null"),
    ],
)
def test_missing_fields_are_named_beside_those_there(template, said):
    with pytest.raises(UserError) as error:
        Template(template).fill(ROW)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "template",
    [
        "{question!r}",
        "{question:>10}",
        "{question:{numbers}}",
        "{numbers[0].real}",
        "{}",
        "{metadata[]}",
        "{question",
        "\\boxed{} {question}",
    ],
)
def test_what_is_not_a_template_is_refused_when_it_is_made(template):
    with pytest.raises(UserError, match=r"write \{\{ and \}\} for braces"):
        Template(template)


@given(st.text())
def test_values_are_never_templates(value):
    assert Template("<{value}>").fill({"value": value}) == f"<{value}>"
    assert Template("{value}{value}").fill({"value": "{value}"}) == "{value}{value}"
