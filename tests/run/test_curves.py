from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from hacpo_fast.errors import UserError
from hacpo_fast.run.curve_data import RunCurves, Series, in_columns, smooth
from hacpo_fast.run.curves import draw_curves
from hacpo_fast.run.palette import agent_colour
from hacpo_fast.run.panels import WIDER, _apart, chosen, validation, widened
from hacpo_fast.run.telemetry import Telemetry


def pixels(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def has_colour(image, colour):
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return (np.abs(image - wanted).sum(axis=-1) < 6).sum() > 50


def with_gaps(records):
    for record in records[::2]:
        for metrics in record.get("agents", {}).values():
            metrics |= {"reward": None, "entropy": math.nan}
    return records


def test_a_run_from_its_folder(tmp_path, make_run):
    with Telemetry(tmp_path, tensorboard=False) as telemetry:
        for record in with_gaps(make_run(steps=60)):
            telemetry.log(record)
    path = draw_curves(tmp_path, tmp_path / "out" / "curves.png", title="a run")
    image = pixels(path)
    assert image.shape[1] == 1440 and 1400 < image.shape[0] < 1900
    assert (image[0] == 255).all(), "light background"
    assert image.std() > 10
    assert has_colour(image, agent_colour(0)) and has_colour(image, agent_colour(1))
    assert not has_colour(image, agent_colour(2))


@pytest.mark.parametrize(
    ("run", "panels"),
    [
        ({"agents": 4}, 8),
        ({"agents": 1, "steps": 1, "sharing": False, "validate_every": 0}, 5),
        ({"agents": 2, "steps": 0, "validate_every": 1}, 1),
    ],
    ids=["four agents", "one record of one agent alone", "validation only"],
)
def test_every_kind_of_run(tmp_path, make_run, run, panels):
    records = make_run(**run)
    assert len(chosen(RunCurves(records))) == panels
    image = pixels(draw_curves(records, tmp_path / "c.png"))
    assert image.shape[1] == 1440 and image.std() > 4
    for index in range(run["agents"]):
        assert has_colour(image, agent_colour(index))


def test_scores_outside_0_to_1_and_missing_ones(tmp_path):
    scores = [{"avg@4": value, "pass@4": 0.5, "problems": 3} for value in (-1.0, 2.5)]
    records = [{"step": at, "validation": {"a": {"sampled": score}}} for at, score in enumerate(scores)]
    records.append({"step": 2, "validation": {"a": {"sampled": {"avg@4": None}}}})
    assert RunCurves(records).validation("a", "sampled").known() == Series([0, 1], [-1.0, 2.5])
    assert pixels(draw_curves(records, tmp_path / "c.png")).std() > 4
    assert pixels(draw_curves(records[2:], tmp_path / "d.png")).std() > 1


def test_shares_start_at_zero_and_other_scores_where_they_are():
    def lowest(*scores):
        axes = Figure().add_subplot()
        validation(axes, RunCurves({"step": at, "validation": {"a": {"g": {"accuracy": s}}}} for at, s in scores))
        return axes.get_ylim()[0]

    assert lowest((0, 0.9), (1, 0.95)) == 0
    assert 1 < lowest((0, 10.0), (1, 10.5)) < 10


def test_a_curve_that_lies_under_others_is_wider():
    one, far = Series([1, 2], [0.0, math.nan]), Series([1, 2], [1.0, 2.0])
    assert widened([one, far, one, one]) == [2 * WIDER, 0, WIDER, 0]
    assert widened([far, one]) == [0, 0] and widened([Series([1], [0.0]), one]) == [0, 0]
    gaps = Series([1], [math.nan])
    assert widened([gaps, gaps]) == [0, 0] and widened([]) == []


def test_nothing_to_draw_is_an_error_for_the_user(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UserError, match="no step has ended"):
        draw_curves(tmp_path, tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy()\n"
        "from hacpo_fast.run.curves import draw_curves\n"
        "records = [{'step': 1, 'agents': {'a': {'reward': 0.5}}}]\n"
        f"draw_curves(records, {str(tmp_path / 'c.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules and dict.__eq__(matplotlib.rcParams, before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_labels_keep_their_order_and_distance():
    heights = _apart([0.5, 0.52, 0.51, 0.9], 0.1)
    assert sorted(range(4), key=heights.__getitem__) == [0, 2, 1, 3]
    assert np.diff(sorted(heights)).min() > 0.099
    assert heights[3] == 0.9
    assert _apart([], 0.1) == [] and _apart([0.3], 0.1) == [0.3]


def test_smoothing_and_columns():
    assert smooth([1.0, 2.0, math.nan, 4.0], 3) == [1.5, 1.5, 3.0, 4.0]
    assert math.isnan(smooth([math.nan], 3)[0])
    assert in_columns(Series([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0]), 3) == Series([1.5, 3.5, 5.0], [2.0, 6.0, 9.0])


def test_other_is_what_the_phases_leave_of_the_total():
    records = [{"step": 1, "time": {"rollout": 2.0, "learn": 1.0, "verify": 0.0, "total": 3.5}, "agents": {}}]
    assert RunCurves(records).time() == {
        "rollout": Series([1], [2.0]),
        "learn": Series([1], [1.0]),
        "other": Series([1], [0.5]),
    }
