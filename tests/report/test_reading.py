from __future__ import annotations

import json

import made_runs
import pytest

from hacpo_fast.errors import UserError
from hacpo_fast.report.reading import read_sources, short_names
from hacpo_fast.report.samples import embedded_samples
from hacpo_fast.report.settings import differences, setting_lines


def test_a_killed_and_resumed_run(tmp_path):
    """A torn last line, steps made twice, no agents saved, no environment."""
    metrics, rollouts = made_runs.records(), made_runs.samples(6, 2)
    again = [{**sample, "response": "again"} for sample in made_runs.samples(6, 2) if sample["step"] >= 5]
    folder = made_runs.write(tmp_path / "run", metrics + metrics[-3:], rollouts + again)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "agents": {"ad')
    (run,), _ = read_sources([folder])
    assert run.records == metrics and not run.finished
    assert run.config == {} and run.environment == []
    assert [sample["step"] for sample in run.rollouts] == [sample["step"] for sample in rollouts]
    assert {sample["response"] for sample in run.rollouts if sample["step"] >= 5} == {"again"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "is not the folder of a run: there is no such folder"),
        (lambda folder: folder.mkdir(), "is not the folder of a run: it has no metrics.jsonl"),
        (lambda folder: made_runs.write(folder / "inner", made_runs.records()), r"there are 1 in it, such as .*inner"),
        (lambda folder: made_runs.write(folder, []), "no step has ended yet"),
        (lambda folder: folder.write_text("x"), "it is a file"),
    ],
)
def test_what_is_not_a_run_is_named(tmp_path, make, message):
    make(tmp_path / "run")
    with pytest.raises(UserError, match=message):
        read_sources([tmp_path / "run"])


def test_tables_of_comparisons(tmp_path):
    run = made_runs.write(tmp_path / "run", made_runs.records())
    rows = [
        {"method": "hacpo", "final": 0.9, "final ±": 0.1, "cpu s": 3},
        {"method": "gspo", "final": 0.8, "final ±": None},
    ]
    comparison = tmp_path / "cpu"
    comparison.mkdir()
    (comparison / "table.json").write_text(json.dumps(rows))
    plain = tmp_path / "other.json"
    plain.write_text(json.dumps({"title": "both", "columns": ["a", "b"], "rows": [[1, "x"], {"a": 2, "b": None}]}))
    _, tables = read_sources([comparison, run, plain])
    assert [table.title for table in tables] == ["Comparison: cpu", "Comparison: both"]
    assert tables[0].columns == ["method", "final", "cpu s"]
    assert tables[0].rows == [["hacpo", [0.9, 0.1], 3], ["gspo", 0.8, None]]
    assert tables[0].shares == ["final"] and "95 %" in tables[0].about
    assert tables[1].shares == [] and tables[1].about == ""
    assert tables[1].rows == [[1, "x"], [2, None]]
    for wrong, message in (
        ("[1, 2]", "every row"),
        ("{}", "no table"),
        ('{"columns": ["a"], "rows": [[1, 2]]}', "the table's 1 columns"),
        ("nothing", "not JSON"),
    ):
        plain.write_text(wrong)
        with pytest.raises(UserError, match=message):
            read_sources([run, plain])
    plain.write_text(json.dumps(rows))
    runs, (table,) = read_sources([plain])
    assert runs == [] and table.rows[0][1] == [0.9, 0.1] and table.shares == []


def test_a_difference_is_named_by_the_method_that_has_none(tmp_path):
    def columns(*rows):
        (tmp_path / "table.json").write_text(
            json.dumps(
                [{"pair": p, "method": m, "both - reference": d, "both - reference ±": None} for p, m, d in rows]
            )
        )
        _, (table,) = read_sources([tmp_path])
        assert table.shares == [table.columns[2]]
        return table.columns[2], table.about

    name, about = columns(("x", "hacpo", None), ("x", "gspo", 0.1), ("y", "hacpo", None), ("y", "gspo", None))
    assert name == "Δ hacpo" and about.endswith("Δ hacpo: difference from hacpo, seed by seed.")
    for unclear in ([("x", "hacpo", None)], [("x", "hacpo", None), ("x", "gspo", None), ("x", "naive", 0.1)]):
        name, about = columns(*unclear)
        assert name == "both - reference" and "from the method without one" in about


def test_runs_are_told_apart_by_as_much_of_their_paths_as_it_takes(tmp_path):
    assert short_names([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == ["x", "y"]
    assert short_names([tmp_path / "a" / "x", tmp_path / "b" / "x"]) == ["a/x", "b/x"]
    with pytest.raises(UserError, match="named twice"):
        short_names([tmp_path, tmp_path])


def test_samples_of_a_long_run_are_whole_steps_within_limits(tmp_path):
    metrics = made_runs.records(steps=1)
    (run,), _ = read_sources(
        [made_runs.write(tmp_path / "run", metrics, made_runs.samples(400, 2, "x" * 5000, each=2))]
    )
    data = embedded_samples(run, runs=1)
    steps = [sample["step"] for sample in data["items"]]
    assert data["total"] == 1600 and 400 <= len(steps) <= 500
    assert steps[0] == 1 and steps[-1] == 400 and all(steps.count(step) == 4 for step in steps)
    text, left_out = data["items"][0]["response"]
    assert len(text) + left_out == 5000
    assert sum(len(sample[name][0]) for sample in data["items"] for name in ("prompt", "response")) <= 700_000
    (run,), _ = read_sources([made_runs.write(tmp_path / "short", metrics, made_runs.samples(3, 2))])
    assert [sample["response"] for sample in embedded_samples(run, runs=1)["items"]] == ["7+5=12;A12"] * 24


def test_settings_that_differ_from_their_defaults_are_marked():
    config = made_runs.settings(
        training={"lr": 1e-4, "betas": [0.9, 0.99]}, validation={"sampling": {"hot": {"temperature": 0.7}}},
        rollout={"prompts_per_step": 128},
    )  # fmt: skip
    config["from_another_version"] = {"a": {"b": 1}}
    lines = setting_lines(config)
    changed = {line.key: (line.value, line.default) for line in lines if line.changed}
    assert changed == {
        "lr": ("0.0001", "1.0e-06"),
        "betas": ("[0.9, 0.99]", "[0.9, 0.95]"),
        "temperature": ("0.7", "0.0"),
    }
    required = [(line.key, line.value) for line in lines if line.value is not None and line.default is None]
    assert required == [
        ("kind", "reasoning_gym"), ("name", "chain_sum"), ("model", "ada"), ("model", "bea"),
        ("from_another_version", "{a: {b: 1}}"),
    ]  # fmt: skip
    assert [line.key for line in lines if line.value is None and line.depth == 0] == [
        "run", "task", "agents", "algorithm", "rollout", "training", "validation",
    ]  # fmt: skip


def test_settings_of_several_runs_are_compared():
    one, two = made_runs.settings(), made_runs.settings(agents=1, run={"seed": 3})
    rows = dict(differences([one, two]))
    assert rows["run.seed"] == ["0", "3"] and rows["agents.bea.model"] == ["bea", ""]
    assert "agents.ada.model" not in rows and differences([one, one]) == []
