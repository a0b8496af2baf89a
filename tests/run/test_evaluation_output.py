import io
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.run.evaluation_folder import check_folder
from hacpo_fast.run.evaluation_output import EvaluationOutput, print_scores, summarise
from hacpo_fast.run.jsonl import JsonlWriter, read_jsonl


def answered(*rewards, tokens=3, ended=True, error=None):
    n = len(rewards)
    return {"rewards": [*rewards], "errors": [error] * n, "tokens": [tokens] * n, "ended": [ended] * n}


def test_scores_of_one_response_per_problem():
    assert summarise([answered(1.0), answered(0.0, tokens=5, ended=False, error="hung")], 1.0) == {
        "avg@1": 0.5, "accuracy": 0.5, "problems": 2, "errors": 1, "cut": 0.5, "tokens": 4.0,
    }  # fmt: skip


def test_scores_of_several_responses_per_problem():
    scores = summarise([answered(1.0, 0.0, 0.0), answered(0.0, 0.0, 0.0)], 1.0)
    assert scores["avg@3"] == pytest.approx(1 / 6) and scores["best@3"] == 0.5
    assert scores["pass@2"] == pytest.approx((1 - 1 / 3) / 2)  # of the three pairs of one right in three, one has none
    assert (scores["problems"], scores["errors"], scores["cut"]) == (2, 0, 0.0)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(2, 7).flatmap(
        lambda n: st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_scores_are_what_all_subsets_of_the_responses_say(rewards):
    n = len(rewards[0])
    scores = summarise([answered(*some) for some in rewards], 1.0)
    every = {k: [list(itertools.combinations(some, k)) for some in rewards] for k in range(1, n + 1)}

    def mean(of, k):
        return sum(sum(map(of, drawn)) / len(drawn) for drawn in every[k]) / len(rewards)

    assert scores[f"avg@{n}"] == pytest.approx(mean(lambda drawn: drawn[0], 1))
    assert scores[f"best@{n}"] == pytest.approx(mean(max, n))
    for k in (k for k in (1, 2, 4) if k <= n):
        assert scores[f"pass@{k}"] == pytest.approx(mean(lambda drawn: 1.0 in drawn, k))
    assert {name for name in scores if "pass" in name} == {f"pass@{k}" for k in (1, 2, 4) if k <= n}


def test_the_last_table_has_each_tasks_own_metric_and_their_mean():
    scores = {
        "gsm8k": {"ada": {"greedy": {"avg@1": 0.25}}, "bea": {"greedy": {"avg@1": 0.5}}},
        "aime2025": {
            "ada": {"sampled": {"avg@30": 0.1, "best@30": 0.75}},
            "bea": {"sampled": {"avg@30": 0.2, "best@30": 0.125}},
        },
    }
    console = Console(file=io.StringIO(), width=100)
    print_scores(scores, {"gsm8k": "avg@1", "aime2025": "best@30"}, console)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert rows[-4:-1] == [
        ["gsm8k", "avg@1", "0.250", "0.500"],
        ["aime2025", "best@30", "0.750", "0.125"],
        ["mean", "0.500", "0.312"],
    ]


@pytest.mark.parametrize(("accuracy", "shown"), [(0.5, False), (0.25, True)])
def test_accuracy_is_shown_where_it_is_not_the_mean_reward(accuracy, shown):
    console = Console(file=io.StringIO(), width=100)
    print_scores({"sums": {"ada": {"greedy": {"avg@1": 0.5, "accuracy": accuracy}}}}, {"sums": "avg@1"}, console)
    assert "avg@1" in console.file.getvalue() and ("accuracy" in console.file.getvalue()) == shown


def test_folders_that_cannot_be_the_output(tmp_path):
    check_folder(tmp_path / "new/deep")
    with pytest.raises(UserError, match=r"exists, and nothing is overwritten; choose another folder$"):
        check_folder(tmp_path)
    with pytest.raises(UserError, match=r"no settings\.yaml; name its folder by --output"):
        check_folder(tmp_path, resume=True)
    (tmp_path / "settings.yaml").write_text("")
    check_folder(tmp_path, resume=True)
    with pytest.raises(UserError, match="or go on with the evaluation in it by --resume"):
        check_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder that can be written to"):
        check_folder(tmp_path / "file" / "x")


@pytest.fixture
def begun(tmp_path):
    """Opens an evaluation by the names of its agents, a new one or to go on; those that are open are closed."""
    opened = []

    def begin(*agents, resume=False):
        task = {"kind": "file", "name": "p.jsonl"}
        config = Config.model_validate({"task": task, "agents": {name: {"model": name} for name in agents}})
        opened.append(EvaluationOutput(tmp_path / "out", config, {"p": config.task}, resume))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def test_two_processes_do_not_write_into_one_evaluation(begun):
    first = begun("a")
    with pytest.raises(UserError, match="another process is evaluating in"):
        begun("a", resume=True)
    first.close()
    begun("a", resume=True)


def test_models_in_another_order_are_told(begun):
    begun("a", "b").close()
    with pytest.raises(UserError, match="the models were a, b, in this order"):
        begun("b", "a", resume=True)


@pytest.mark.parametrize("text", ["", "tasks: {p: [", "- 1", "a: \0"])
def test_damaged_settings_are_one_message(begun, tmp_path, text):
    begun("a").close()
    (tmp_path / "out/settings.yaml").write_text(text)
    with pytest.raises(UserError, match=r"settings\.yaml holds no settings any more \(.*\); start anew"):
        begun("a", resume=True)


def test_damaged_answers_are_one_message(begun, tmp_path):
    begun("a").close()
    (tmp_path / "out/responses.jsonl").write_text('{"task": "p", "agent": "a"}\n')
    with pytest.raises(UserError, match=r"answer 1 lacks sampling, problem, answer, .* remove that line"):
        begun("a", resume=True)


@pytest.mark.parametrize("last", ['{"a": ', '{"a": \n', "\0\0\n"])
def test_a_broken_last_line_does_not_end_up_in_the_middle(tmp_path, last):
    path = tmp_path / "r.jsonl"
    path.write_text('{"n": 1}\n' + last)
    assert read_jsonl(path) == [{"n": 1}]
    writer = JsonlWriter(path)
    writer.write({"n": 2})
    writer.close()
    assert read_jsonl(path) == [{"n": 1}, {"n": 2}]
