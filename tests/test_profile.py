import gzip
import json

import pytest
import runs

from hacpo_fast.config_file import validate
from hacpo_fast.errors import UserError


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A run of two agents whose second step is profiled, and the same run without a profile."""
    folder = tmp_path_factory.mktemp("runs")
    models = runs.write_models(folder / "models")
    config = runs.settings(
        {name: models[name] for name in ("ada", "bea")}, folder, run__profile_steps=[2, 5],
        rollout__prompts_per_step=2, training__minibatch_responses=8, rollout__max_response_tokens=8,
    )  # fmt: skip
    plain = config.model_copy(update={"run": config.run.model_copy(update={"profile_steps": []})})
    records = [runs.train(each, folder / name) for each, name in ((config, "run"), (plain, "plain"))]
    return folder / "run", *records


def test_a_trace_has_ranges_by_phase_and_agent(profiled):
    folder, _, _ = profiled
    assert sorted(path.name for path in (folder / "profile").iterdir()) == ["step-2.json.gz", "step-2.txt"]
    events = json.loads(gzip.decompress((folder / "profile" / "step-2.json.gz").read_bytes()))["traceEvents"]
    ranges = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events if event.get("ph") == "X"]
    spans = {name: (start, end) for name, start, end in ranges if name.startswith(("rollout", "learn", "verify"))}
    assert {"rollout ada", "rollout bea", "verify", "learn ada", "learn bea"} <= spans.keys()
    for part in ("forward", "backward", "optimizer", "pack", "assemble"):
        for agent in ("ada", "bea"):
            begin, stop = spans[f"learn {agent}"]
            assert any(name == part and begin <= start and end <= stop for name, start, end in ranges), (part, agent)
    assert any(name == "aten::mm" for name, _, _ in ranges)


def test_the_table_names_the_operators(profiled):
    folder, _, _ = profiled
    table = (folder / "profile" / "step-2.txt").read_text()
    assert "Self CPU" in table and "aten::mm" in table and "backward" in table


def test_a_profile_changes_no_number(profiled):
    _, records, plain = profiled
    assert runs.timeless(records) == runs.timeless(plain)


def test_the_time_of_a_step_adds_up(profiled):
    for record in profiled[1]:
        time = record["time"]
        assert time["total"] == pytest.approx(sum(time.values()) - time["total"], rel=1e-6)
        for phase in ("rollout", "learn"):
            assert time[phase] == pytest.approx(sum(agent["time"][phase] for agent in record["agents"].values()))
        for agent in record["agents"].values():
            parts = {name: seconds for name, seconds in agent["time"].items() if name.startswith("learn/")}
            assert sum(parts.values()) == pytest.approx(agent["time"]["learn"])
            assert {"assemble", "pack", "forward", "loss", "backward", "measure", "optimizer", "other"} <= {
                name.removeprefix("learn/") for name in parts
            }


def test_steps_to_profile_are_numbers_from_1():
    with pytest.raises(UserError, match=r"run.profile_steps"):
        validate(
            {"task": {"kind": "file", "name": "x"}, "agents": {"a": {"model": "x"}}, "run": {"profile_steps": [0]}}
        )
