from __future__ import annotations

import json
import math
import subprocess
import sys
import types

import pytest

from hacpo_fast.errors import UserError
from hacpo_fast.run.telemetry import Telemetry, read_metrics


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_every_record_is_written_and_read_back(tmp_path, make_run):
    records = make_run(agents=3)
    with Telemetry(tmp_path, tensorboard=False) as telemetry:
        for record in records:
            telemetry.log(record)
            assert read_metrics(tmp_path)[-1] == record
    assert read_metrics(tmp_path / "metrics.jsonl") == records
    assert not (tmp_path / "tensorboard").exists()


def test_nan_is_null_in_strict_json(tmp_path, make_run):
    record = make_run(validate_every=0)[0]
    record["agents"]["small"]["loss"] = math.nan
    record["agents"]["small"]["grad_norm"] = math.inf
    with Telemetry(tmp_path) as telemetry:
        telemetry.log(record)

    def fail(constant):
        raise AssertionError(f"{constant} is not JSON")

    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    small = json.loads(line, parse_constant=fail)["agents"]["small"]
    assert small["loss"] is None and small["grad_norm"] is None
    assert math.isnan(events(tmp_path)["small/loss"][0][1])


def test_curves_of_an_agent_lie_over_its_optimiser_updates(tmp_path, make_run):
    records = make_run(steps=8, validate_every=4)
    for record in records:
        if "agents" in record:
            record["agents"]["medium"]["updates"] = 3 * record["step"]
    with Telemetry(tmp_path, config={"run": {"seed": 0}}) as telemetry:
        for record in records:
            telemetry.log(record)
    found = events(tmp_path)
    assert [x for x, _ in found["small/reward"]] == [6 * step for step in range(1, 9)]
    assert [x for x, _ in found["medium/reward"]] == [3 * step for step in range(1, 9)]
    assert [x for x, _ in found["small/validation/greedy/accuracy"]] == [0, 24, 48]
    assert [x for x, _ in found["medium/validation/sampled/pass_at_8"]] == [0, 12, 24]
    assert [x for x, _ in found["time/rollout"]] == list(range(1, 9))
    assert [x for x, _ in found["run/no_signal_share"]] == list(range(1, 9))
    assert found["small/reward"][2][1] == pytest.approx(records[3]["agents"]["small"]["reward"])
    assert "small/updates" not in found


def test_a_validation_may_name_its_updates(tmp_path, make_run):
    validation = make_run()[0] | {"step": 7, "updates": {"small": 42, "medium": 43}}
    with Telemetry(tmp_path) as telemetry:
        telemetry.log(validation)
    assert [x for x, _ in events(tmp_path)["small/validation/greedy/accuracy"]] == [42]


def test_a_resumed_run_replaces_the_steps_it_repeats(tmp_path, make_run):
    first, again = make_run(steps=6, validate_every=2, seed=0), make_run(steps=6, validate_every=2, seed=1)
    with Telemetry(tmp_path, tensorboard=False) as telemetry:
        for record in first[:-2]:  # up to step 5; the last checkpoint is that of step 2
            telemetry.log(record)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "agents": {"sma')
    kept, repeated = [r for r in first if r["step"] <= 2], [r for r in again if r["step"] > 2]
    with Telemetry(tmp_path, tensorboard=True) as telemetry:
        telemetry.log(kept[-1])  # a validation comes once more, before any step of this process
        for at, record in enumerate(repeated):
            telemetry.log(record)
            assert read_metrics(tmp_path) == kept + repeated[: at + 1]
    assert [x for x, _ in events(tmp_path)["small/validation/greedy/accuracy"]] == [12, 24, 36]


def test_a_failing_run_closes_its_files_and_closing_twice_is_fine(tmp_path, make_run):
    with pytest.raises(KeyboardInterrupt), Telemetry(tmp_path) as telemetry:
        telemetry.log(make_run()[0])
        raise KeyboardInterrupt
    telemetry.close()
    assert len(read_metrics(tmp_path)) == 1


def test_no_metrics_is_an_error_for_the_user(tmp_path):
    with pytest.raises(UserError, match="folder of a run"):
        read_metrics(tmp_path)


def test_without_tensorboard_there_are_no_events(tmp_path, make_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with Telemetry(tmp_path, tensorboard=True) as telemetry:
        telemetry.log(make_run()[0])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_without_wandb_the_user_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'hacpo_fast\[wandb\]'"):
        Telemetry(tmp_path / "run", wandb_project="p")
    assert not (tmp_path / "run").exists()


def test_wandb_gets_the_same_points_with_their_axes(tmp_path, make_run, monkeypatch):
    axes, rows, finished, started = {}, [], [], []
    run = types.SimpleNamespace(
        define_metric=lambda tag, step_metric: axes.__setitem__(tag, step_metric),
        log=rows.append,
        finish=lambda exit_code: finished.append(exit_code),
    )
    fake = types.SimpleNamespace(init=lambda **options: started.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        with Telemetry(tmp_path, False, "project", {"seed": 0}) as telemetry:
            for record in make_run(steps=1, validate_every=1):
                telemetry.log(record)
    assert axes["small/reward"] == axes["small/validation/greedy/accuracy"] == "small/updates"
    assert axes["time/total"] == axes["run/prompts"] == "step"
    assert [row["small/updates"] for row in rows[:3]] == [0, 6, 6]
    assert started[0] == started[1] and started[0]["id"] and started[0]["project"] == "project"
    assert finished == [0, 0]


def test_importing_the_room_is_light():
    code = (
        "import sys; from hacpo_fast.run import telemetry, console, curves, rollout_log;"
        "print(*({'torch', 'matplotlib', 'tensorboard', 'wandb'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
