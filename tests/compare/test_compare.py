"""The command, end to end, with next to nothing to do."""

import json
from pathlib import Path

from hacpo_fast.compare.__main__ import main

PLAN = Path(__file__).parents[2] / "configs" / "comparison" / "cpu.yaml"


def results(output):
    return {path.name: path.read_text() for path in (output / "cells").glob("*.json")}


def timeless(text):
    return {key: value for key, value in json.loads(text).items() if key != "cpu_seconds"}


def test_a_comparison_runs_goes_on_and_makes_its_tables(tmp_path, capsys):
    command = [str(PLAN), "--quick", "--output", str(tmp_path), "--workers", "1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "2 of 2 cells" in said and "similar sums, hacpo, seed 0" in said
    first = results(tmp_path)
    assert set(first) == {"similar sums--hacpo--0.json", "similar sums--gspo--0.json"}
    hacpo, gspo = (json.loads(first[f"similar sums--{name}--0.json"]) for name in ("hacpo", "gspo"))
    assert hacpo["agents"]["alice"]["rollouts"] == gspo["agents"]["alice"]["rollouts"] == 2 * 4 * 8
    assert hacpo["agents"]["bob"]["start"] == gspo["agents"]["bob"]["start"]
    assert hacpo["cpu_seconds"] > 0 and len(hacpo["agents"]["bob"]["steps"]["reward"]) == 2
    table = (tmp_path / "table.md").read_text()
    assert table in said and "| gspo | 1 |" in table
    assert "these numbers mean nothing" in " ".join(said.split())
    for method in (hacpo, gspo):  # agents without any right answer would learn nothing
        assert all(agent["training_reward"] > 0 and agent["updates"] > 0 for agent in method["agents"].values())

    # A cell that was killed left no result, or a torn file under another name: it alone is made again, the same.
    killed = "similar sums--gspo--0.json"
    (tmp_path / "cells" / killed).rename(tmp_path / "cells" / f".{killed}.123")
    (tmp_path / "cells" / f".{killed}.123").write_text('{"pair": "simil')
    kept = (tmp_path / "cells" / "similar sums--hacpo--0.json").stat().st_mtime_ns
    assert main([*command, "--table"]) == 0
    assert "1 of 2 cells" in capsys.readouterr().out
    assert main(command) == 0
    assert "hacpo, seed 0" not in capsys.readouterr().out
    assert (tmp_path / "cells" / "similar sums--hacpo--0.json").stat().st_mtime_ns == kept
    assert timeless(results(tmp_path)[killed]) == timeless(first[killed])
