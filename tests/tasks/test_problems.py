"""Where problems come from, and what is said when they do not."""

import json
import sys

import pyarrow
import pytest
from pyarrow import parquet

from hacpo_fast.config import TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.tasks import load_problems, split_held_out


def write(file, *rows):
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(file)


@pytest.fixture
def jsonl(tmp_path):
    return lambda *rows: write(tmp_path / "problems.jsonl", *rows)


def task(name, **settings):
    return TaskConfig(**{"kind": "file", "name": str(name), "reward": "exact", **settings})


def refusal(*args, **settings):
    with pytest.raises(UserError) as error:
        load_problems(task(*args, **settings))
    return str(error.value)


def test_jsonl(jsonl):
    first, second = load_problems(task(jsonl({"prompt": "1+1", "answer": 2}, "", {"prompt": "2+2", "answer": "4"})))
    assert (first.prompt, first.answer, second.answer) == ("1+1", "2", "4")
    assert first.messages == ({"role": "user", "content": "1+1"},)
    assert first.row == {"prompt": "1+1", "answer": 2}
    assert len(first.id) == 16 and first.id != second.id


def test_ids_and_order_are_those_of_the_source(jsonl):
    path = jsonl(*({"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(50)))
    assert load_problems(task(path)) == load_problems(task(path))
    assert [problem.answer for problem in load_problems(task(path))] == [str(i + 1) for i in range(50)]


def test_a_problem_has_the_same_id_whatever_stands_around_it(jsonl):
    row = {"prompt": "1+1", "answer": "2"}
    alone = load_problems(task(jsonl(row)))[0]
    assert load_problems(task(jsonl({"prompt": "3", "answer": "3"}, row), system_prompt="Think."))[1].id == alone.id


def test_text_of_all_languages(jsonl):
    texts = ["\u4f60\u597d", "\U0001f469\u200d\U0001f680", "e\u0301", "a\u2028b", "a\x85b", "\u05e9\u05dc\u05d5\u05dd"]
    path = jsonl(*(json.dumps({"prompt": text, "answer": text}, ensure_ascii=False) for text in texts))
    assert [problem.prompt for problem in load_problems(task(path))] == texts


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": "b"}\r\n')
    assert load_problems(task(file))[0].prompt == "a"


def test_template_and_system_prompt(jsonl):
    path = jsonl({"q": "1+1", "answer": "2", "meta": {"unit": "cm"}})
    (problem,) = load_problems(task(path, prompt="{q} in {meta[unit]}", system_prompt="Think."))
    assert problem.prompt == "1+1 in cm"
    assert problem.messages == (
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "1+1 in cm"},
    )


def test_duplicates_are_dropped_and_counted(jsonl):
    rows = [("a", "1"), ("b", "2"), ("a", "1"), ("a", "3"), ("b", "2")]
    problems = load_problems(task(jsonl(*({"prompt": prompt, "answer": answer} for prompt, answer in rows))))
    assert [(problem.prompt, problem.answer) for problem in problems] == [("a", "1"), ("b", "2")]
    assert (problems.duplicates, problems.contradictions) == (3, 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a", "answer": }', "line 3: not JSON"),
        ('["prompt", "answer"]', "line 3: a list; every line must be an object"),
        ('{"prompt": "a", "answre": "b"}', "line 3: no field 'answer' (task.answer); did you mean 'answre'?"),
        (
            '{"promt": "a", "answer": "b"}',
            "line 3: no field {prompt} for the template '{prompt}': did you mean 'promt'?",
        ),
        ('{"prompt": null, "answer": "b"}', "line 3: the field {prompt} of the template '{prompt}' is null"),
        ('{"prompt": "a", "answer": null}', "line 3: the field 'answer' (task.answer) is null"),
        ('{"prompt": " ", "answer": "b"}', "line 3: the prompt is empty"),
        ('{"prompt": "\\ud800", "answer": "b"}', "line 3: the prompt is not valid Unicode"),
    ],
)
def test_a_bad_line_is_named(jsonl, line, said):
    path = jsonl({"prompt": "1", "answer": "1"}, "", line)
    assert f"{path}, {said}" in refusal(path)


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_bytes(b'{"prompt": "a", "answer": "b"}\n{"prompt": "\xff", "answer": "b"}\n')
    assert f"{file}, line 2: not UTF-8" in refusal(file)


def test_files_that_are_not_there(tmp_path, jsonl):
    path = jsonl({"prompt": "a", "answer": "b"})
    assert "did you mean 'problems.jsonl'?" in refusal(path.replace("problems", "problem"))
    assert "there is no folder" in refusal(tmp_path / "no" / "problems.jsonl")
    assert "ends in .jsonl, .json, .csv, .parquet" in refusal(tmp_path / "problems.txt")
    assert "no problems in it" in refusal(jsonl(""))


def test_your_own_reward_does_without_answers(jsonl):
    path = jsonl({"prompt": "a"}, {"prompt": "b", "answer": {"tests": [1]}})
    first, second = load_problems(task(path, reward="module:function"))
    assert (first.answer, second.answer) == (None, '{"tests": [1]}')


def test_parquet(tmp_path):
    file = tmp_path / "problems.parquet"
    table = {"question": [f"{i}?" for i in range(100)], "final": list(range(100)), "tags": [["a", "b"]] * 100}
    parquet.write_table(pyarrow.table(table), file, row_group_size=30)
    problems = load_problems(task(file, prompt="{question} {tags[1]}", answer="final"))
    assert [(problem.prompt, problem.answer) for problem in problems] == [(f"{i}? b", str(i)) for i in range(100)]
    assert f"{file}, row 1: no field 'answer' (task.answer); There are: question, final, tags" in refusal(
        file, prompt="{question}"
    )


def test_a_file_that_is_not_parquet(tmp_path):
    file = tmp_path / "problems.parquet"
    file.write_text("no")
    assert f"{file}: not a readable Parquet file" in refusal(file)


CONVERSATION = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
]


def test_messages(jsonl):
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "hi"}]
    path = jsonl({"chat": CONVERSATION, "answer": "4"}, {"chat": own, "answer": "5"})
    first, second = load_problems(task(path, messages="chat", system_prompt="Think."))
    assert first.messages == ({"role": "system", "content": "Think."}, *CONVERSATION)
    assert first.prompt == "1+1?\n2\nAnd 2+2?"
    assert second.messages == tuple(own)


def test_messages_in_parquet_have_no_empty_keys(tmp_path):
    file = tmp_path / "problems.parquet"
    chats = [[{"role": "user", "content": "a", "name": "Ann"}], [{"role": "user", "content": "b"}]]
    parquet.write_table(pyarrow.table({"chat": chats, "answer": ["1", "2"]}), file)
    problems = load_problems(task(file, messages="chat"))
    assert [problem.messages for problem in problems] == [tuple(chat) for chat in chats]


@pytest.mark.parametrize("chat", ["hi", [], ["hi"], [{"role": "user"}], [{"role": "user", "content": ["x"]}], None])
def test_what_is_not_a_conversation(jsonl, chat):
    assert "line 1: the field 'chat' must be a list of messages" in refusal(
        jsonl({"chat": chat, "answer": "1"}), messages="chat"
    )


def test_a_conversation_that_gives_the_answer_away(jsonl):
    row = {"chat": CONVERSATION[:2], "answer": "2"}
    assert "ends with an answer of the assistant" in refusal(jsonl(row), messages="chat")
    assert "no field 'caht' (task.messages); did you mean 'chat'?" in refusal(jsonl(row), messages="caht")


def chain_sum(**settings):
    params = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    return TaskConfig(**{"kind": "reasoning_gym", "name": "chain_sum", "params": params, "size": 50, **settings})


def test_reasoning_gym():
    problems = load_problems(chain_sum(prompt="{metadata[expression]} ="))
    assert problems == load_problems(chain_sum(prompt="{metadata[expression]} ="))
    for problem in problems:
        assert problem.row.keys() == {"question", "answer", "metadata"}
        assert problem.prompt == problem.row["metadata"]["expression"] + " ="
        assert eval(problem.row["metadata"]["expression"]) == int(problem.answer)
    assert load_problems(chain_sum())[0].prompt == problems[0].row["question"]
    assert load_problems(chain_sum(seed=1))[0] != load_problems(chain_sum())[0]


def test_reasoning_gym_repeats_itself_only_in_the_source():
    problems = load_problems(chain_sum(size=3000))
    assert len(problems) + problems.duplicates == 3000 and problems.duplicates > 0
    assert len({problem.prompt for problem in problems}) == len(problems)
    training, held_out = split_held_out(problems, 0.2)
    assert not {problem.prompt for problem in training} & {problem.prompt for problem in held_out}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "chain_sums"}, "did you mean 'chain_sum'?"),
        ({"params": {"min_term": 3}}, "no parameter 'min_term'; did you mean 'min_terms'?"),
        ({"params": {"min_terms": 3, "max_terms": 2}}, "refuses its parameters: AssertionError"),
        ({"params": {"seed": 3}}, "set task.seed instead"),
        ({"prompt": "{metadata[expresion]}"}, "chain_sum, problem 0: no field {metadata[expresion]}"),
    ],
)
def test_what_reasoning_gym_cannot_do(settings, said):
    with pytest.raises(UserError) as error:
        load_problems(chain_sum(**settings))
    assert said in str(error.value)


def test_hub_data_sets(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    write(data / "train.jsonl", *({"prompt": f"{i}", "answer": f"{i}"} for i in range(5)))
    problems = load_problems(task(data, kind="hub"))
    assert [problem.prompt for problem in problems] == [f"{i}" for i in range(5)]
    assert f"{data} [train], row 1: no field {{x}}" in refusal(data, kind="hub", prompt="{x}")
    assert "split dev could not be loaded" in refusal(data, kind="hub", split="dev")


def test_a_hub_that_cannot_be_reached(monkeypatch):
    import datasets

    def refuse(*args, **kwargs):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    said = refusal("user/data", kind="hub", subset="main")
    assert "'user/data', subset main, split train" in said
    assert "Couldn't reach the hub" in said and "online" in said


@pytest.mark.parametrize(
    ("kind", "package", "extra"), [("hub", "datasets", "data"), ("reasoning_gym", "reasoning_gym", "reasoning")]
)
def test_packages_that_are_not_installed_are_named(monkeypatch, kind, package, extra):
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("hub", "reasoning_gym"):
        monkeypatch.delitem(sys.modules, f"hacpo_fast.tasks.{name}", raising=False)
        monkeypatch.delattr(f"hacpo_fast.tasks.{name}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled(package), *sys.meta_path])
    assert f"'{package}' is not installed: pip install 'hacpo_fast[{extra}]'" in refusal("chain_sum", kind=kind)


class NotInstalled:
    """An import hook under which a package is missing."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named '{self.package}'", name=self.package)


def test_an_answer_column_that_is_named_must_be_there(tmp_path):
    """Also where the reward, the user's own, could do without."""
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "2+3=", "solution": "5"}) + "\n")
    named = TaskConfig(kind="file", name=str(path), reward="mine.py:reward", answer="solutoin")
    with pytest.raises(UserError, match=r"no row has the field 'solutoin' \(task.answer\); the fields are prompt, sol"):
        load_problems(named)
    unnamed = TaskConfig(kind="file", name=str(path), reward="mine.py:reward")
    assert load_problems(unnamed)[0].answer is None
