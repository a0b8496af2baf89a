"""Files and folders that the commands beside training read, damaged or of the wrong kind: one message, no traceback."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

PLAN = Path(__file__).parents[1] / "configs" / "comparison" / "cpu.yaml"
RECORD = '{"step": 1, "time": {"total": 1.0}, "agents": {"a": {"reward": 0.5}}}\n'
DEEP, LONG = "[" * 100_000, "9" * 5000
NAME = "a" * 300
CELL = "out/cells/similar sums--hacpo--0.json"


def written(path, text):
    return lambda: (path.parent.mkdir(parents=True, exist_ok=True), path.write_text(text))


def saved(**about):
    return lambda: save_file({"x": np.zeros(1)}, "b.safetensors", {"format": "1", **about})


# (command, arguments, files, part of the message)
WRONG = [
    ("report", ["run"], {"run/metrics.jsonl": "3\n"}, "metrics.jsonl, line 1: a int, no record"),
    ("report", ["run"], {"run/metrics.jsonl": '{"agents": {}}\n'}, 'no record of a step: {"agents": {}}'),
    ("report", ["run"], {"run/metrics.jsonl": '{"step": 1, "agents": 3}\n'}, "a line is no record of a step"),
    ("report", ["run"], {"run/metrics.jsonl": f"{DEEP}\n{RECORD}"}, "line 1: not JSON (maximum recursion"),
    ("report", ["run"], {"run/metrics.jsonl": f'{{"step": {LONG}}}\n{RECORD}'}, "line 1: not JSON (Exceeds the limit"),
    ("report", ["run", "t.json"], {"t.json": '{"rows": [[1]], "columns": 3}'}, "t.json: columns must be a list"),
    ("report", ["run", "t.json"], {"t.json": DEEP}, "t.json: not JSON"),
    ("report", ["run", "--output", NAME], {}, "aaa: File name too long"),
    ("report", [NAME], {}, "aaa/table.json: File name too long"),
    ("report", ["run", "--png", "run/metrics.jsonl/x"], {}, "run/metrics.jsonl/x: Not a directory"),
    ("compare", [str(PLAN), "--output", "run/metrics.jsonl"], {}, "run/metrics.jsonl/cells: Not a directory"),
    ("compare", [str(PLAN), "--table", "--output", "out", "--into", "no.md"], {}, "--into: there is no document no.md"),
    ("compare", [str(PLAN), "--table", "--output", "out", "--into", "x.md"], {"x.md": ""}, "--into: x.md has no lines"),
    (
        "compare",
        ["p.yaml"],
        {"p.yaml": f"base: {PLAN}\nmethods: {{a/b: []}}\nreference: a/b"},
        "methods: name 'a/b': use",
    ),
    ("demo", [NAME], {}, "aaa/alice: File name too long"),
    ("demo", ["demo"], {"demo/alice/recipe.json": "{"}, "demo/alice: its recipe.json is damaged; --force makes"),
    ("demo", ["demo"], {"demo/alice/recipe.json": "[]"}, "demo/alice: its recipe.json is damaged"),
    ("demo.smollm2", [NAME], {}, "aaa: File name too long"),
    ("replay", ["b.safetensors"], saved(), "b.safetensors: a saved update that is damaged (KeyError: 'update')"),
    ("replay", ["b.safetensors"], saved(update="{"), "b.safetensors: a saved update that is damaged (JSONDecodeError"),
    ("replay", ["b.safetensors"], saved(update="{}", config="{}"), "a saved update that is damaged (KeyError"),
    ("evaluate", ["m", "task=3"], {}, "settings: task: Input should be a mapping of settings, not 3"),
    ("evaluate", ["m", "--config", "c.yaml"], {"c.yaml": "agents: [m]"}, "c.yaml: agents: Input should be a mapping"),
    ("evaluate", ["m", "agents.m=3", "--benchmark", "math500"], {}, "settings: agents.m: Input should be a mapping"),
    ("evaluate", ["m", "--output", NAME, "task={kind: file, name: x.jsonl}"], {}, "aaa: File name too long"),
]

# What is beside the point of a command does not stop it.
HARMLESS = [
    ("report", ["run"], {"run/config.yaml": f"run: {LONG}"}),
    ("report", ["run"], {"run/config.yaml": f"run: {DEEP[:5000]}"}),
    ("report", ["run"], {"run/config.yaml": "run: &a {x: *a}"}),
    ("report", ["run"], {"run/config.yaml": "run: 3\ntask: [4]\nagents: 5"}),
    ("report", ["run"], {"run/environment.json": DEEP}),
    ("report", ["run"], {"run/rollouts.jsonl": "{}\n{}\n"}),
    *(
        ("compare", [str(PLAN), "--table", "--output", "out"], {CELL: text})
        for text in ("{", "[]", "{}", "3", '{"pair": "x"}', DEEP)
    ),
]


def call(command, arguments, files, folder, monkeypatch):
    monkeypatch.chdir(folder)
    written(Path("run/metrics.jsonl"), RECORD)()
    if callable(files):
        files()
    else:
        for path, text in files.items():
            written(Path(path), text)()
    module = f"hacpo_fast.{command}" + (".__main__" if command in ("report", "compare", "demo") else "")
    return import_module(module).main(arguments)


@pytest.mark.parametrize(("command", "arguments", "files", "said"), WRONG)
def test_what_is_wrong_is_one_message(tmp_path, monkeypatch, capsys, command, arguments, files, said):
    assert call(command, arguments, files, tmp_path, monkeypatch) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and said in message and len(message) < 1500


@pytest.mark.parametrize(("command", "arguments", "files"), HARMLESS)
def test_what_is_beside_the_point_is_passed_over(tmp_path, monkeypatch, capsys, command, arguments, files):
    assert call(command, arguments, files, tmp_path, monkeypatch) == 0
    assert capsys.readouterr().err == ""


def test_a_damaged_cell_is_made_again(tmp_path, monkeypatch):
    from hacpo_fast.compare.cell import is_finished
    from hacpo_fast.compare.plan import Plan

    cell = Plan.load(PLAN).cells(Path("agents"))[0]
    agent = {"start": 0, "final": 0.5, "training_reward": 0.3, "rollouts": 9, "updates": 2}
    result = {"pair": cell.pair, "method": cell.method, "seed": cell.seed, "made_from": cell.made_from}
    result["agents"] = {"alice": agent, "bob": agent}
    (tmp_path / cell.file).write_text(json.dumps(result))
    assert is_finished(cell, tmp_path)
    (tmp_path / cell.file).write_text(json.dumps(result)[:-5])
    assert not is_finished(cell, tmp_path)
