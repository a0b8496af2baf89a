from __future__ import annotations

import math
import random

import made_runs
import pytest

from hacpo_fast.report.charts import CATALOGUE, OTHER_TOPICS, chart_groups
from hacpo_fast.report.data import ALL_POINTS, FEWEST, POINTS, agents_of, page_data
from hacpo_fast.report.reading import read_sources
from hacpo_fast.report.series import RunSeries


def data_of(*folders):
    runs, tables = read_sources(folders)
    series = [RunSeries(run) for run in runs]
    return page_data(runs, series, chart_groups(series), tables)


def charts_of(data):
    return {chart["name"]: chart for group in data["groups"] for chart in group["charts"]}


def test_every_number_of_a_run_has_a_chart(tmp_path):
    """Also what no version has written so far, nested or of the run as a whole; text goes into a table."""
    metrics = made_runs.records()
    for record in metrics:
        if "agents" in record:
            record |= {"novel": 3 * record["step"], "memory": {"peak_bytes": 1e9 + record["step"]}, "remark": "fine"}
            record["agents"]["ada"]["time"] = {"learn/forward": 0.5 * record["step"]}
            record["agents"]["bea"] |= {"engine": {"cache": {"hits": 0.5 * record["step"]}}, "kind": "shared"}
    data = data_of(made_runs.write(tmp_path / "run", metrics))
    charts = charts_of(data)
    spreads = {figure.metric for figures in CATALOGUE.values() for figure in figures if figure.spread}
    for agent, values in metrics[-2]["agents"].items():
        for name, value in values.items():
            if isinstance(value, int | float):
                name, column = (name.replace("_std", "_mean"), "spread") if name.endswith("_std") else (name, "y")
                (line,) = [line for line in charts[name]["lines"] if line["agent"] == agent]
                assert len(line[column]) == 6 and line[column][-1] == pytest.approx(value)
    assert spreads <= charts.keys()
    (line,) = charts["novel"]["lines"]
    assert line == {"run": 0, "agent": "", "x": [1, 2, 3, 4, 5, 6], "y": [3, 6, 9, 12, 15, 18]}
    assert charts["time.learn/forward"]["kind"] == "seconds"
    assert charts["memory.peak_bytes"]["kind"] == "bytes" and charts["engine.cache.hits"]["lines"][0]["y"][1] == 1.0
    assert [group["title"] for group in data["groups"][-3:]] == list(OTHER_TOPICS)
    assert {(each["agent"], each["name"], each["value"]) for each in data["words"]} == {
        ("", "remark", "fine"), ("bea", "kind", "shared"),
    }  # fmt: skip
    assert {row["name"] for row in data["numbers"]} == charts.keys()


def test_validations_are_drawn_by_sampling_and_score(tmp_path):
    metrics = made_runs.records()
    charts = charts_of(data_of(made_runs.write(tmp_path / "run", metrics)))
    drawn = [name for name in charts if name.startswith("validation")]
    # The mean reward of greedy answers is their accuracy here; it has no chart of its own.
    assert drawn == [
        f"validation.{name}" for name in ("greedy.accuracy", "sampled.avg@4", "sampled.pass@4", "sampled.pass@1")
    ]
    line = charts["validation.sampled.pass@4"]["lines"][1]
    wanted = [record["validation"]["bea"]["sampled"]["pass@4"] for record in metrics if "validation" in record]
    assert line["x"] == [0, 2, 4, 6] and line["y"] == pytest.approx(wanted)


def test_results_are_those_of_the_records(tmp_path):
    metrics = made_runs.records(steps=20)
    data = data_of(made_runs.write(tmp_path / "run", metrics))
    greedy = {r["step"]: r["validation"]["ada"]["greedy"]["accuracy"] for r in metrics if "validation" in r}
    best = max(greedy, key=greedy.get)
    row = data["results"][0]
    assert (row["agent"], row["score"]) == ("ada", "accuracy, greedy")
    assert (row["start"], row["final"], row["final_step"]) == (greedy[0], greedy[20], 20)
    assert (row["best"], row["best_step"]) == (greedy[best], best)
    last = [record["agents"]["ada"]["entropy"] for record in metrics if record.get("agents")][-2:]
    assert row["entropy"] == pytest.approx(sum(last) / 2)
    facts = data["runs"][0]
    assert facts["seconds"] == pytest.approx(20 * 3.0 + 11 * 0.5) and facts["seconds_per_step"] == pytest.approx(3.0)
    assert facts["hours"][0][-1] == 20 and facts["hours"][1][-1] == pytest.approx(65.5 / 3600)
    assert facts["updates"]["bea"] == [list(range(1, 21)), [5 * step for step in range(1, 21)]]


def test_missing_values_are_gaps(tmp_path):
    metrics = made_runs.records(validate_every=0)
    metrics[2]["agents"]["ada"]["entropy"] = math.nan
    del metrics[3]["agents"]["ada"]["entropy"], metrics[4]["time"]
    for record in metrics:
        record["agents"]["ada"]["kl"] = None
    data = data_of(made_runs.write(tmp_path / "run", metrics))
    line = charts_of(data)["entropy"]["lines"][0]
    assert line["x"] == [1, 2, 3, 5, 6] and line["y"][2] is None and None not in line["y"][:2] + line["y"][3:]
    assert [line["agent"] for line in charts_of(data)["kl"]["lines"]] == ["bea"]
    assert data["runs"][0]["hours"] == [[], []] and data["runs"][0]["seconds_per_step"] == pytest.approx(3.0)
    assert data["results"][0].get("final") is None


def test_a_run_that_goes_its_own_way_beside_one_that_shares(tmp_path):
    hacpo = made_runs.write(tmp_path / "hacpo", made_runs.records(), config=made_runs.settings())
    alone = made_runs.settings(algorithm={"name": "gspo"})
    gspo = made_runs.write(
        tmp_path / "gspo", made_runs.records(sharing=False, agents=3, validate_every=0), config=alone
    )
    data = data_of(hacpo, gspo)
    charts = charts_of(data)
    assert data["agents"] == ["ada", "bea", "cy"]
    assert {line["run"] for line in charts["cross_live"]["lines"]} == {0}
    assert [(line["run"], line["agent"]) for line in charts["reward"]["lines"]] == [
        (0, "ada"), (0, "bea"), (1, "ada"), (1, "bea"), (1, "cy"),
    ]  # fmt: skip
    assert dict(data["differences"])["algorithm.name"] == ["hacpo", "gspo"]
    assert data["runs"][0]["ranges"]["cross_ratio_mean"] == [0.8, 1.0]
    assert "cross_ratio_mean" not in data["runs"][1]["ranges"]


def test_long_runs_are_thinned_and_short_ones_are_not(tmp_path):
    draw = random.Random(0)
    long = [{"step": s, "time": {"total": 1.0}, "agents": {"a": {"reward": draw.random()}}} for s in range(1, 9001)]
    long[4321]["agents"]["a"]["reward"] = 50.0
    data = data_of(made_runs.write(tmp_path / "long", long))
    (line,) = charts_of(data)["reward"]["lines"]
    assert 1000 < len(line["x"]) <= POINTS and line["of"] == 9000
    assert line["y"][line["x"].index(4322)] == 50.0
    assert len(line["trend"][0]) <= 300 and len(data["times"][0]["steps"]) <= 120
    assert sum(data["times"][0]["phases"]["other"]) * 75 == pytest.approx(9000.0)
    assert ALL_POINTS // FEWEST > 6 * 40, "six agents with forty numbers stay within the limit of all points"
    short = data_of(made_runs.write(tmp_path / "short", made_runs.records()))
    assert not any("of" in line or "trend" in line for chart in charts_of(short).values() for line in chart["lines"])


def test_a_resumed_run_says_where(tmp_path):
    starts = [{"after_step": step, "started": f"day {step}"} for step in (0, 4, 9)]
    facts = data_of(made_runs.write(tmp_path / "run", made_runs.records(), environment=starts))["runs"][0]
    assert facts["resumed"] == [4, 9] and facts["started"] == "day 0"


def test_the_order_of_agents_is_that_of_their_first_appearance(tmp_path):
    runs, _ = read_sources([made_runs.write(tmp_path / "run", made_runs.records(agents=7, steps=1))])
    assert agents_of([RunSeries(run) for run in runs]) == list(made_runs.NAMES)
