from __future__ import annotations

import base64
import hashlib
import json
import random
from html.parser import HTMLParser
from importlib.resources import files

import made_runs
import pytest
from PIL import Image

from hacpo_fast.report.__main__ import main
from hacpo_fast.report.charts import chart_groups
from hacpo_fast.report.data import page_data
from hacpo_fast.report.figures import look
from hacpo_fast.report.page import SCRIPTS, json_in_html, page
from hacpo_fast.report.reading import read_sources
from hacpo_fast.report.series import RunSeries

VOID = {"meta", "br", "input", "link", "img"}


class Reader(HTMLParser):
    """Elements, checked to be closed in order, and the text of each script and style."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.texts.append((self.open[-1], data))


def hostile_run(folder, steps=3):
    """A run whose every free text is hostile, where a run can hold one."""
    metrics = made_runs.records(steps)
    metrics[1]["agents"]["ada"] |= {made_runs.HOSTILE: 1, "note": made_runs.HOSTILE}
    config = made_runs.settings()
    config["task"]["prompt"] = made_runs.HOSTILE.replace("\ud800", "")  # YAML holds no lone surrogates
    return made_runs.write(
        folder, metrics, made_runs.samples(steps, 2, made_runs.HOSTILE), config,
        [{"after_step": 0, "command": [made_runs.HOSTILE], "commit": made_runs.HOSTILE, "packages": {"torch": "2"}}],
    )  # fmt: skip


def page_of(folder):
    runs, tables = read_sources([folder])
    series = [RunSeries(run) for run in runs]
    data = page_data(runs, series, chart_groups(series), tables)
    return page(data), data


def test_the_page_is_whole_and_its_data_are_what_was_given(tmp_path):
    html, data = page_of(hostile_run(tmp_path / "<b>run&amp;"))
    assert html.isascii()
    reader = Reader(html)
    assert not reader.open
    (style,) = [text for tag, text in reader.texts if tag == "style"]
    embedded, script = [text for tag, text in reader.texts if tag == "script"]
    assert json.loads(embedded) == data
    assert data["samples"][0]["items"][0]["response"] == made_runs.HOSTILE
    assert not set(embedded) & set("<>&\x00\x1b") and "window.harmed" not in script + style
    assert [tag for tag, _ in reader.elements].count("b") == 0, "the name of the run is text"
    for _, attributes in reader.elements:
        assert not attributes.keys() & {"src", "srcset", "action"} and attributes.get("href", "#").startswith("#")
    policy = next(a["content"] for _, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for text in (style, script):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_json_in_html_is_the_same_json():
    value = {"</script>": ["<!--", "&lt;", "\u2028", "\ud800", "\x00", 1e-300, -0.0, None, True, "\\u003c"]}
    text = json_in_html(value)
    assert json.loads(text) == value and text.isascii() and "<" not in text and "&" not in text
    with pytest.raises(ValueError):
        json_in_html(float("nan"))


def test_all_scripts_are_in_the_page_and_read_no_html():
    folder = files("hacpo_fast.report").joinpath("page")
    names = {path.name for path in folder.iterdir()}
    assert names == {*SCRIPTS, "report.html", "report.css"}
    for name in SCRIPTS:
        text = folder.joinpath(name).read_text()
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "srcdoc",
            "http:",
        ):
            assert way not in text.replace("http://www.w3.org/2000/svg", ""), (name, way)


def test_a_run_of_thirty_steps_is_small(tmp_path):
    draw = random.Random(1)
    text = "".join(draw.choice("0123456789abcdef ") for _ in range(20_000))
    folder = made_runs.write(
        tmp_path / "run", made_runs.records(steps=30, agents=6), made_runs.samples(30, 6, text), made_runs.settings(6)
    )
    assert len(page_of(folder)[0]) < 2_000_000


def test_the_command_writes_the_page_and_the_figures(tmp_path, capsys):
    metrics = [
        {"step": s, "time": {"rollout": 1.0, "total": 2.0}, "agents": {"a": {"reward": 0.1 * s}}} for s in (1, 2)
    ]
    metrics.append({"step": 2, "validation": {"a": {"greedy": {"accuracy": 0.5, "problems": 2}}}})
    run = made_runs.write(tmp_path / "run", metrics)
    assert main([str(run), "--png", str(tmp_path / "png")]) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    assert Reader((run / "report.html").read_text()).elements
    names = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert names == ["reward.png", "times.png", "validation-greedy-accuracy.png"]
    with Image.open(tmp_path / "png" / "reward.png") as image:
        assert image.size == (1050, 703), "as wide as a column, with one row of the legend"
    assert main([str(run), "--output", str(tmp_path / "elsewhere" / "page.html")]) == 0
    assert (tmp_path / "elsewhere" / "page.html").read_text() == (run / "report.html").read_text()


def test_no_two_curves_of_a_figure_look_alike():
    seven = list(made_runs.NAMES)
    assert len({str(look(0, name, seven, 1)) for name in seven}) == 7
    two = [look(run, name, ["ada", "bea"], 3) for run in range(3) for name in ("ada", "bea")]
    assert len({str(each) for each in two}) == 6 and len({colour for colour, _ in two}) == 2
    alone = [look(run, "ada", ["ada"], 3) for run in range(3)]
    assert len({colour for colour, _ in alone}) == 3 and {dashes for _, dashes in alone} == {"-"}


def test_a_comparison_alone_has_a_page(tmp_path):
    (tmp_path / "table.json").write_text(json.dumps([{"method": "hacpo", "final": 0.9, "final \u00b1": 0.1}]))
    assert main([str(tmp_path)]) == 0
    assert "<title>Comparison: " in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["missing"], "there is no such folder"),
        (["run", "--output", "."], "give the name of the page"),
        (["run", "--png", "run/metrics.jsonl"], "is a file; give a folder"),
        (["run", "--output", "run/metrics.jsonl/x.html"], "cannot be written"),
    ],
)
def test_mistakes_are_one_message(tmp_path, monkeypatch, capsys, options, message):
    made_runs.write(tmp_path / "run", made_runs.records(steps=1))
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
