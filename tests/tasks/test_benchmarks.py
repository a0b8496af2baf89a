"""Benchmarks in the forms in which they are published: small samples made up for these tests."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from hacpo_fast.config import TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.tasks import load_problems
from hacpo_fast.tasks.benchmarks import BENCHMARKS
from hacpo_fast.tasks.boxed import boxed_in_solution

OLYMPIAD = {
    "id": 1, "context": None, "question": "Solve it.", "solution": ["So it is."], "final_answer": ["$2$"],
    "is_multiple_answer": False, "unit": None, "answer_type": "Numerical", "error": None, "subfield": "Algebra",
}  # fmt: skip


def load(name, *rows, folder, **settings):
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_problems(TaskConfig(kind="benchmark", name=name, source=str(file), **settings))


@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        (
            "math500",
            {"problem": "Q", "solution": "\\boxed{9}", "answer": "\\frac{1}{2}", "unique_id": "t/1"},
            "\\frac{1}{2}",
        ),
        ("math500", {"Question": "Q", "Answer": "$[0,1)$"}, "[0,1)"),
        (
            "math",
            {
                "problem": "Q",
                "level": "Level 2",
                "type": "Algebra",
                "solution": "Half: $\\boxed{\\frac{1}{\\sqrt{2}}}$.",
            },
            "\\frac{1}{\\sqrt{2}}",
        ),
        (
            "math",
            {"problem": "Q", "solution": "$\\boxed{1}$, no, $\\boxed{\\left\\{1,2\\right\\}}$"},
            "\\left\\{1,2\\right\\}",
        ),
        ("math", {"problem": "Q", "solution": "We get $\\boxed 7$."}, "7"),
        ("math", {"problem": "Q", "solution": "We get $\\fbox{7}$."}, "7"),
        ("gsm8k", {"question": "Q", "answer": "He has 3*2=<<3*2=6>>6 apples.\n#### 6"}, "6"),
        ("gsm8k", {"question": "Q", "answer": "Much.\n#### 12,345"}, "12345"),
        ("gsm8k", {"question": "Q", "answer": "Less.\n#### -3.50"}, "-3.50"),
        ("aime2025", {"problem": "Q", "answer": 70, "id": 0}, "70"),
        ("aime2025", {"question": "Q", "answer": "070"}, "70"),
        ("aime2025", {"question": "Q", "answer": "336^\\circ"}, "336"),
        ("amc23", {"id": 1, "question": "Q", "answer": 27.0, "url": "u"}, "27"),
        ("amc23", {"problem": "Q", "answer": "-1.0"}, "-1"),
        ("amc23", {"question": "Q", "answer": ["1.25"]}, "1.25"),
        ("minerva", {"question": "Q", "answer": "4.5e33"}, "4.5e33"),
        ("minerva", {"problem": "Q", "solution": "\\[s=\\boxed{1.6} \\mathrm{~cm}\\]", "type": "T", "idx": 0}, "1.6"),
        ("olympiadbench", {**OLYMPIAD, "final_answer": ["$\\frac{1}{2}$"]}, "\\frac{1}{2}"),
        ("olympiadbench", {**OLYMPIAD, "final_answer": ["$2$", "$512$"]}, "2, 512"),
        ("olympiadbench", {**OLYMPIAD, "final_answer": ["$(1,2)$,$(2,1)$"]}, "(1,2),(2,1)"),
        ("olympiadbench", {**OLYMPIAD, "final_answer": "['3', '4']"}, "3, 4"),
        ("olympiadbench", {**OLYMPIAD, "final_answer": "[3, 4]"}, "[3, 4]"),
        ("minerva", {"problem": "Q", "answer": "np.arcsin(5/7)"}, "\\arcsin(5/7)"),
        ("minerva", {"question": "Q", "answer": "-2./5"}, "-2./5"),
        ("minerva", {"problem": "Q", "answer": "a_{0} \\cos (t)+$ $b_{0} t"}, "a_{0} \\cos (t)+ b_{0} t"),
        (
            "olympiadbench",
            {**OLYMPIAD, "final_answer": ["$(-\\infty, 0) \\cup\\{2\\}$."]},
            "(-\\infty, 0) \\cup\\{2\\}",
        ),
        ("olympiadbench", {**OLYMPIAD, "final_answer": ["$f(x)=1$,$f(x)=x+2$"]}, "f(x)=1,f(x)=x+2"),
        # Without spaces, 3,115 would be one number; commas in brackets are no separators.
        ("olympiadbench", {**OLYMPIAD, "is_multiple_answer": True, "final_answer": ["$3$,$115$"]}, "3, 115"),
        ("olympiadbench", {**OLYMPIAD, "is_multiple_answer": True, "final_answer": ["3,115", "7"]}, "3, 115, 7"),
        (
            "olympiadbench",
            {**OLYMPIAD, "is_multiple_answer": True, "final_answer": ["(1,2),\\{3,4\\}"]},
            "(1,2), \\{3,4\\}",
        ),
        ("olympiadbench", {"problem": "Solve it.", "answer": "$2n-1$", "subject": "Math"}, "2n-1"),
    ],
)
def test_reference_answers(tmp_path, name, row, answer):
    (problem,) = load(name, row, folder=tmp_path)
    question = "Solve it." if name == "olympiadbench" else "Q"
    if row.get("is_multiple_answer"):
        question += "\nThere are several answers: separate them by commas."
    assert problem.answer == answer
    assert problem.prompt == f"{question}\nThink step by step and put the final answer into \\boxed{{}}."
    assert (
        problem.row.items() >= {key: value for key, value in row.items() if key not in ("answer", "question")}.items()
    )


def test_every_benchmark_of_the_paper_is_among_them():
    tested = {mark.args[1][i][0] for mark in test_reference_answers.pytestmark for i in range(len(mark.args[1]))}
    assert tested == BENCHMARKS.keys() and len(BENCHMARKS) == 7


def test_what_olympiadbench_says_about_the_answer(tmp_path):
    row = {**OLYMPIAD, "context": "Let x be real.", "unit": "cm", "is_multiple_answer": True, "error": "1e-2"}
    (problem,) = load("olympiadbench", row, folder=tmp_path, prompt="{question}")
    assert problem.prompt == (
        "Let x be real.\nSolve it.\nThere are several answers: separate them by commas.\n"
        "Give the answer in the unit cm, and only its value."
    )
    assert problem.row["tolerance"] == "1e-2"
    assert load("olympiadbench", OLYMPIAD, folder=tmp_path)[0].row["tolerance"] is None


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        (
            "math",
            {"problem": "Q", "solution": "It is 7."},
            "line 1: the field 'solution': no \\boxed{} in the solution",
        ),
        ("math", {"problem": "Q", "answer": "7"}, "the reference answer is missing: none of the fields solution"),
        ("math500", {"question": "Q", "answer": "7"}, "the problem is missing: none of the fields problem, Question"),
        ("math500", {"problem": "Q", "answer": "\\boxed{7"}, "no complete \\boxed{}"),
        ("gsm8k", {"question": "Q", "answer": "He has six."}, "no number behind '####'"),
        ("aime2025", {"problem": "Q", "answer": "1000"}, "'1000' is not a whole number from 0 to 999"),
        ("aime2025", {"problem": "Q", "answer": "1/2"}, "not a whole number"),
        ("amc23", {"question": "Q", "answer": "(A)"}, "'(A)' is not a number"),
        ("olympiadbench", {**OLYMPIAD, "final_answer": None}, "the reference answer is missing"),
        ("olympiadbench", {**OLYMPIAD, "question": "See <img_12>."}, "needs its picture; take the text-only problems"),
        ("olympiadbench", {**OLYMPIAD, "modality": "Multimodal"}, "needs its picture"),
        (
            "olympiadbench",
            {**OLYMPIAD, "final_answer": None, "question_type": "Theorem proof"},
            "a proof cannot be checked; take the open-ended problems",
        ),
    ],
)
def test_rows_that_are_not_of_the_benchmark(tmp_path, name, row, said):
    with pytest.raises(UserError) as error:
        load(name, row, folder=tmp_path)
    assert str(error.value).startswith(str(tmp_path)) and said in str(error.value)


def test_other_file_formats_give_the_same_problems(tmp_path):
    rows = [{"question": f'Q{i}, "quoted"', "answer": f"So\n#### {i}"} for i in range(3)]
    expected = load("gsm8k", *rows, folder=tmp_path)
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.csv").write_text(
        "\ufeffquestion,answer\r\n" + "".join(f'"Q{i}, ""quoted""","So\n#### {i}"\r\n' for i in range(3))
    )
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("list.json", "lines.json", "a.csv", "a.parquet"):
        assert load_problems(TaskConfig(kind="benchmark", name="gsm8k", source=str(tmp_path / name))) == expected


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"question": ', "a.json, line 1: not JSON"),
        ("a.json", "[1]", "a.json, item 1: a int; the file must hold objects"),
        ("a.csv", "question,answer\n1,2,3\n", "a.csv, line 2: more values than the first line has names"),
        ("a.csv", b"question,answer\n\xff,2\n", "not CSV in UTF-8"),
        ("a.txt", "", "ends in .jsonl, .json, .csv, .parquet"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as error:
        load_problems(TaskConfig(kind="file", name=str(tmp_path / name), prompt="{question}"))
    assert said in str(error.value)


def test_math_as_it_was_first_published(tmp_path):
    for split, answer in (("train", 1), ("test", 2)):
        for subject in ("algebra", "geometry"):
            (tmp_path / "MATH" / split / subject).mkdir(parents=True)
            row = {
                "problem": f"{split} {subject}",
                "level": "Level 1",
                "type": "T",
                "solution": f"$\\boxed{{{answer}}}$",
            }
            (tmp_path / "MATH" / split / subject / "1.json").write_text(json.dumps(row))

    def problems(source, split=None):
        task = TaskConfig(kind="benchmark", name="math", source=str(source), split=split, prompt="{problem}")
        return [(problem.prompt, problem.answer) for problem in load_problems(task)]

    assert problems(tmp_path / "MATH", "train") == [("train algebra", "1"), ("train geometry", "1")]
    assert (
        problems(tmp_path / "MATH")
        == problems(tmp_path / "MATH/test")
        == [("test algebra", "2"), ("test geometry", "2")]
    )
    with pytest.raises(UserError, match="has no folder train"):
        problems(tmp_path / "MATH/test", "train")


def test_the_hub_is_asked_for_what_is_published_there(monkeypatch):
    import datasets

    asked = []

    def record(name, subset, split):
        asked.append((name, subset, split))
        return [{"question": "Q", "answer": "#### 1"}]

    monkeypatch.setattr(datasets, "load_dataset", record)
    load_problems(TaskConfig(kind="benchmark", name="gsm8k"))
    load_problems(TaskConfig(kind="benchmark", name="gsm8k", split="train"))
    load_problems(TaskConfig(kind="benchmark", name="gsm8k", source="me/mine", subset="s"))
    assert asked == [("openai/gsm8k", "main", "test"), ("openai/gsm8k", "main", "train"), ("me/mine", "s", "test")]


def test_a_data_set_without_a_test_split_has_another_only_one(tmp_path):
    def publish(folder, *splits):
        for split in splits:
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{split}.jsonl").write_text(json.dumps({"question": split, "answer": "7"}) + "\n")
        return TaskConfig(kind="benchmark", name="minerva", source=str(tmp_path / folder), prompt="{question}")

    assert [problem.prompt for problem in load_problems(publish("one", "train"))] == ["train"]
    assert [problem.prompt for problem in load_problems(publish("usual", "train", "test"))] == ["test"]
    with pytest.raises(UserError, match=r'split test could not be loaded: ValueError: Unknown split "test"'):
        load_problems(publish("two", "train", "validation"))


def test_a_benchmark_that_there_is_not():
    with pytest.raises(UserError, match="there is no benchmark 'math5000'; did you mean 'math500'"):
        load_problems(TaskConfig(kind="benchmark", name="math5000"))


@pytest.mark.parametrize(
    ("solution", "inside"),
    [
        ("\\boxed 2.", "2"),
        ("$\\boxed 12$ and", "12"),
        ("\\fbox{a} \\boxed{b}", "b"),
        ("\\boxed{b} \\fbox{a}", "a"),
        ("none", None),
    ],
)
def test_boxes_of_people(solution, inside):
    assert boxed_in_solution(solution) == inside
