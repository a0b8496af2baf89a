"""The paper's mathematical benchmarks as they are published, with answers in the form that the `math` reward takes.

All data sets are at https://huggingface.co/datasets/ followed by the name that the table at the end gives as `hub`:

    math500         500 problems of MATH (arXiv 2305.20050): problem, answer (LaTeX), solution
    math            12,500 problems of competitions (arXiv 2103.03874; first published as MATH/<split>/<subject>/N.json
                    by https://github.com/hendrycks/math): problem, and a solution whose \\boxed{} is the answer
    gsm8k           school problems (arXiv 2110.14168): question, and a worked answer that ends in #### 1,234
    aime2025        AIME I and II of 2025: problem or question, and a whole number from 0 to 999
    amc23           AMC 12 of 2023: question or problem, and a number, also printed as 27.0
    minerva         OCWCourses of Minerva (arXiv 2206.14858): question or problem, and answer or a boxed solution, in
                    which numbers are also printed as 4.5e33, -1./3 or np.arcsin(5/7)
    olympiadbench   OlympiadBench (https://github.com/OpenBMB/OlympiadBench), its text-only English problems with
                    answers, OE_TO_maths_en_COMP: context, question, final_answer (a list, whose items hold several
                    answers between commas), is_multiple_answer, unit, error (the one that is allowed)

Copies of these files circulate with other names of the two columns (problem and answer for OlympiadBench) and are read
too. The table of pairs in tests/tasks/test_verifying_benchmarks.py shows what counts as right. What math-verify gets
wrong and is left so:

 - too strict: roots and products that are equal only for positive letters, sqrt(4 r^2) = 2r; binomials against
   factorials; degrees against radians; a column against a tuple; (0, \\pm 2) for two points; an inequality where the
   reference is an interval (the other way round is right); the right-hand side alone where the left one is more than a
   name or f(x), such as dx/dt; names that are not read, such as E_1, but as the same text; rounding: 1.57 is not 1.6
   without an allowed error, and 0.333 is not 1/3; answers in sentences ("a x + b, where a is any integer"); times of
   day;
 - too lenient: several answers are a set, so that their order and repetitions do not count (x, y, z = 1, 0, 1 is any
   of 0, 1), and they may stand in brackets; 10\\% is 10 and 0.1; a number's base and unit are not looked at: 52 is
   52_8, 3 m is 3 cm, and even where m is a variable, 3 m is 3; capitals are small letters in formulas.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.tasks import files
from hacpo_fast.tasks.boxed import boxed_in_solution
from hacpo_fast.tasks.names import instead_of
from hacpo_fast.tasks.rewards import TOLERANCE
from hacpo_fast.tasks.several import split_answers

Row = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark is and what its columns mean.

    question, answer: columns with the problem and the reference answer, by preference. read: such an answer in LaTeX;
    raises UserError. samples: answers per problem of which the paper counts the best (its Appendix A).
    """

    hub: str
    question: tuple[str, ...]
    answer: tuple[str, ...]
    read: Callable[[Any], str]
    subset: str | None = None
    samples: int = 1


def rows(name: str, source: str | None, subset: str | None, split: str | None) -> Iterator[tuple[str, Row]]:
    """(where it stands, row) of every problem of benchmark `name`; a row has `question` and `answer` beside its own
    fields, and `tolerance` where the benchmark allows an error.

    source: file, folder or hub name; None: the hub's own. A folder holds a data set as the hub does, or .json files
    with one problem each in a folder per split, as MATH was published. split: None: test, or of a data set that has
    only one, that; a file is taken whole.
    Raises UserError where there is no such benchmark or source, or a problem's text or answer is missing.
    """
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark '{name}'; {instead_of(name, BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    for where, row in _published(benchmark, source, subset, split):
        try:
            yield where, _problem(benchmark, row)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _published(
    benchmark: Benchmark, source: str | None, subset: str | None, split: str | None
) -> Iterator[tuple[str, Row]]:
    if source is not None:
        path = Path(source).expanduser()
        if (found := _local(path, split)) is not None:
            return found
        if not path.exists() and (source[0] in "/~." or source.count("/") > 1):  # no name on the hub
            there = sorted(item.name for item in path.parent.glob("*"))
            raise UserError(f"there is no file or folder {path}; {instead_of(path.name, there)}")
    from hacpo_fast.tasks import hub

    if source is None:
        return hub.rows(benchmark.hub, subset or benchmark.subset, split)
    return hub.rows(source, subset, split)


def _local(path: Path, split: str | None) -> Iterator[tuple[str, Row]] | None:
    """Rows of a file, or of a folder of files with one problem each; None where the hub's library is to look."""
    if path.suffix in files.SUFFIXES:
        return files.rows(str(path))
    if not path.is_dir() or any(any(path.rglob(f"*{suffix}")) for suffix in (".jsonl", ".parquet")):
        return None
    folder = path / (split or "test")
    if not folder.is_dir():
        if split and path.name != split:
            raise UserError(f"task.split: {path} has no folder {split}")
        folder = path
    single = sorted(folder.rglob("*.json"))
    return (item for file in single for item in files.rows(str(file))) if single else None


def _problem(benchmark: Benchmark, row: Row) -> Row:
    question = row[_column(row, benchmark.question, "the problem")]
    olympiad = benchmark is BENCHMARKS["olympiadbench"]
    if olympiad:
        question, allowed = _olympiad(row, str(question))
    column = _column(row, benchmark.answer, "the reference answer")
    try:
        answer = benchmark.read(row[column])
    except UserError as error:
        raise UserError(f"the field '{column}': {error}") from None
    if olympiad:
        if row.get("is_multiple_answer"):
            answer = ", ".join(split_answers(answer))  # 3,115 would be one number
        return {**row, "question": question, "answer": answer, TOLERANCE: allowed}
    return {**row, "question": question, "answer": answer}


def _column(row: Row, names: tuple[str, ...], what: str) -> str:
    """The first of the columns that the row has and that is not empty."""
    for name in names:
        if row.get(name) not in (None, "", []):
            return name
    raise UserError(f"{what} is missing: none of the fields {', '.join(names)}; there are {', '.join(map(str, row))}")


def _olympiad(row: Row, question: str) -> tuple[str, str | None]:
    """The question with what the answer's form is checked for, and the allowed error."""
    if row.get("modality") == "Multimodal" or "<img_" in question:
        raise UserError("the problem needs its picture; take the text-only problems (OE_TO_maths_en_COMP)")
    if row.get("question_type") == "Theorem proof":
        raise UserError("a proof cannot be checked; take the open-ended problems (OE_TO_maths_en_COMP)")
    parts = [str(row["context"])] if row.get("context") else []
    parts.append(question)
    if row.get("is_multiple_answer"):
        parts.append("There are several answers: separate them by commas.")
    if unit := row.get("unit"):
        parts.append(f"Give the answer in the unit {unit}, and only its value.")
    return "\n".join(parts), str(row["error"]) if row.get("error") else None


def _items(value: Any) -> list[str]:
    """The parts of an answer: of a list, also of one that was printed (['1', '2']); else the answer alone."""
    if isinstance(value, str) and re.match(r"\[\s*['\"]", value):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pass  # it was an answer in brackets
    items = value if isinstance(value, (list, tuple)) else [value]
    plain = (re.sub(r"(?<!\\)\$", "", str(item)).strip() for item in items)
    return [re.sub(r"(?<!\.)\.$", "", item) for item in plain]  # some answers are sentences with a full stop


def latex(value: Any) -> str:
    """An answer as it stands, several separated by commas; of a worked solution its last \\boxed{}."""
    text = ", ".join(_items(value))
    if re.search(r"\\(boxed|fbox)", text):
        found = boxed_in_solution(text)
        if found is None:
            raise UserError("no complete \\boxed{} in the solution")
        return found
    return text


def ocw(value: Any) -> str:
    """The same; functions of NumPy, in which few answers of OCWCourses are written, are those of LaTeX."""
    return re.sub(r"\bnp\.([a-z]+)", r"\\\1", latex(value))


def solution(value: Any) -> str:
    """What a worked solution has in its last \\boxed{}."""
    found = boxed_in_solution(str(value))
    if found is None:
        raise UserError("no \\boxed{} in the solution")
    return found


def after_hashes(value: Any) -> str:
    """The number behind ####, with which worked answers of GSM8K end, without separators."""
    tail = str(value).rpartition("####")[2].strip().removeprefix("$").replace(",", "")
    if not re.fullmatch(r"-?(\d+(\.\d*)?|\.\d+)", tail):
        raise UserError(f"no number behind '####' at its end, but {tail[-40:]!r}")
    return tail


def whole(value: Any) -> str:
    """A whole number from 0 to 999, as all answers of AIME are, also printed as 070, 70.0 or 70^\\circ."""
    (text, *more) = _items(value)
    match = re.fullmatch(r"(\d{1,3})(?:\.0*)?(?:\^\{?\\circ\}?)?", text)
    if more or not match:
        raise UserError(f"{value!r} is not a whole number from 0 to 999")
    return str(int(match[1]))


def number(value: Any) -> str:
    """A number, of which 27.0 is written as 27."""
    (text, *more) = _items(value)
    if more or not re.fullmatch(r"-?\d+(\.\d+)?", text):
        raise UserError(f"{value!r} is not a number")
    return re.sub(r"\.0+$", "", text)


BENCHMARKS = {
    "math500": Benchmark("HuggingFaceH4/MATH-500", ("problem", "Question"), ("answer", "Answer"), latex),
    "math": Benchmark("DigitalLearningGmbH/MATH-lighteval", ("problem",), ("solution",), solution),
    "gsm8k": Benchmark("openai/gsm8k", ("question",), ("answer",), after_hashes, subset="main"),
    "aime2025": Benchmark("math-ai/aime25", ("problem", "question"), ("answer",), whole, samples=30),
    "amc23": Benchmark("math-ai/amc23", ("question", "problem"), ("answer",), number),
    "minerva": Benchmark("math-ai/minervamath", ("question", "problem"), ("answer", "solution"), ocw),
    "olympiadbench": Benchmark("math-ai/olympiadbench", ("question", "problem"), ("final_answer", "answer"), latex),
}
