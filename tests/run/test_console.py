from __future__ import annotations

import io
import math
import os
import re
import threading
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console as RichConsole

from hacpo_fast.run import cells
from hacpo_fast.run.console import Console
from hacpo_fast.run.progress import Progress
from hacpo_fast.run.rollout_log import RolloutSample
from hacpo_fast.run.text import printable

NAMES = ["small", "medium", "large", "instruct"]
HOSTILE = "ok\x1b[2J\x1b]0;title\x07\r\x9b31m\u202egnp.exe[bold red]markup[/] :smile: \ud800\x00 你好"


def plain(agents=2, steps=12):
    out = io.StringIO()
    return Console(steps, NAMES[:agents], console=RichConsole(file=out, width=80)), out


def live(agents=2, steps=12, width=80, height=50):
    rich = RichConsole(file=io.StringIO(), force_terminal=True, width=width, height=height, record=True)
    return Console(steps, NAMES[:agents], live=True, console=rich), rich


def picture(console, rich):
    rich.export_text()  # forget what was printed before
    rich.print(console._view.render())
    return rich.export_text()


def feed(console, records):
    for record in records:
        (console.validation if "validation" in record else console.step)(record)


def silence(record):
    record["no_signal_share"] = 1.0
    for metrics in record["agents"].values():
        metrics |= {"no_signal_share": 1.0, "loss": 0.0}
    return record


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(), max_size=60), st.integers(1, 4))
def test_nothing_that_acts_on_a_terminal_is_left(text, lines):
    shown = printable(text, limit=50, lines=lines)
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c != "\n"]
    assert shown.count("\n") < lines


def test_escapes_can_be_read_and_length_is_limited():
    assert printable("a\x1b[31mb\n\u202e", lines=1) == r"a\x1b[31mb\n\u202e"
    assert printable("x" * 30, limit=10) == "x" * 10 + " [20 more characters]"
    assert printable("a\nb\nc", lines=2) == "a\nb [2 more characters]"
    assert printable("你好, naïve 🙂") == "你好, naïve 🙂"


def test_a_pipe_gets_aligned_lines_without_escapes(make_run):
    console, out = plain()
    with console:
        feed(console, make_run())
    text = out.getvalue()
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    steps = [line for line in lines if re.match(r"\s*(\d+/12)?\s+(small|medium) ", line)]
    assert len(steps) == 24
    assert len({line.index("±") for line in steps}) == 1
    assert all(cell_len(line) <= 125 for line in steps)
    headers = [line for line in lines if "cross ratio" in line]
    assert len(headers) == 2 and "left)" in headers[0]
    assert re.search(r"validation at step 12  greedy accuracy:  small \d+\.\d % \(\+\d+\.\d\)", text)


@pytest.mark.parametrize("resumed_at", [5, 8])
def test_a_resumed_run_counts_the_change_from_its_first_validation(make_run, resumed_at):
    records = make_run()
    console, straight = plain()
    feed(console, records)
    before = [record for record in records if record["step"] <= resumed_at]
    out = io.StringIO()
    feed(
        Console(12, NAMES[:2], resumed_at, console=RichConsole(file=out, width=80), before=before),
        records[len(before) :],
    )
    last = [text.getvalue().splitlines()[-2:] for text in (straight, out)]
    assert last[0] == last[1] and all("step 12  " in line and "(" in line for line in last[1])


def test_halves_are_rounded_up_as_in_reports():
    assert [cells.percent(right / 400) for right in (381, 383, 385, 380)] == ["95.3 %", "95.8 %", "96.3 %", "95.0 %"]
    assert cells.percent(1 / 3) == "33.3 %" and cells.percent(1.0, 0) == "100 %"
    assert cells.change(0.9525, 0.9) == "+5.3" and cells.change(0.0, 0.0025) == "-0.3"
    assert cells.percent(math.inf) == "inf %" and cells.percent(math.nan) == "nan %"


def test_output_that_only_claims_to_be_a_terminal_is_not_redrawn(make_run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Console(12, NAMES[:1], console=RichConsole(file=out)) as console:
        feed(console, make_run(agents=1))
    assert "\x1b" not in out.getvalue()


def drain(leader, seen):
    """Everything that is written to a pseudo-terminal; it ends with an error when nobody has it open any more."""
    try:
        while chunk := os.read(leader, 1 << 16):
            seen.append(chunk)
    except OSError:
        pass


def test_a_terminal_is_redrawn(make_run):
    leader, follower = os.openpty()
    chunks = []
    reader = threading.Thread(target=drain, args=(leader, chunks))
    reader.start()
    with os.fdopen(follower, "w", encoding="utf-8") as terminal:
        rich = RichConsole(file=terminal, width=80, height=40, _environ={"TERM": "xterm"})
        with Console(3, NAMES[:2], console=rich) as console:
            feed(console, make_run(steps=1, validate_every=1))
    reader.join()
    os.close(leader)
    seen = b"".join(chunks).decode()
    assert "\x1b[" in seen and "1/3" in seen and "reward" in seen


def test_a_log_in_another_encoding_gets_escapes(make_run):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    with Console(12, NAMES[:1], console=RichConsole(file=out)) as console:
        feed(console, make_run(agents=1))
        console.rollouts([RolloutSample(1, "small", "p", HOSTILE, 1.0)])
    out.flush()
    assert rb"\u4f60" in raw.getvalue()


@pytest.mark.parametrize("agents", [1, 2, 4])
@pytest.mark.parametrize("sharing", [True, False])
def test_the_table_fits_80_columns(make_run, agents, sharing):
    console, rich = live(agents)
    feed(console, make_run(agents=agents, sharing=sharing))
    text = picture(console, rich)
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    for name in NAMES[:agents]:
        assert name in text
    assert ("cross ratio" in text) == sharing
    for label in ("capability", "entropy", "gradient norm", "tok/s", "greedy accuracy", "sampled pass@8", "rollout"):
        assert label in text
    assert "step 12/12" in text and "done" in text


def test_two_agents_fit_a_terminal_of_24_lines(make_run):
    console, rich = live(height=24)
    feed(console, make_run())
    assert len(picture(console, rich).rstrip("\n").splitlines()) <= 24


@pytest.mark.parametrize("make", [plain, live])
def test_no_signal_is_said_instead_of_a_bare_zero(make_run, make):
    console, out = make()
    console.step(silence(make_run(validate_every=0)[0]))
    text = out.getvalue() if make is plain else picture(console, out)
    assert "no learning signal: 100 % of the prompts had equal rewards" in text
    assert "0.00e+00" not in text


@pytest.mark.parametrize("make", [plain, live])
def test_a_loss_of_zero_with_signal_is_a_number(make_run, make):
    console, out = make()
    record = make_run(validate_every=0)[0]
    record["agents"]["small"]["loss"] = 0.0
    console.step(record)
    text = out.getvalue() if make is plain else picture(console, out)
    assert "no learning signal" not in text and "0.00e+00" in text


@pytest.mark.parametrize("make", [plain, live])
def test_missing_metrics_and_nan_do_not_matter(make, make_run):
    console, out = make()
    with console:
        console.phase("rollout small")
        console.step({"step": 1, "agents": {"small": {}, "medium": {"reward": math.nan, "response_tokens": math.nan}}})
        console.step({"step": 2, "time": {"total": 1.0}, "agents": {"small": {"reward": None, "own_clip_low": 0.0}}})
        console.validation({"step": 2, "validation": {"small": {"greedy": {"accuracy": None}}}})
        console.validation({"step": 2, "validation": {"small": {"greedy": {"accuracy": 0.5}}}})
    assert "50.0 %" in (out.getvalue() if make is plain else picture(console, out))


def test_errors_appear_once_there_are_some(make_run):
    console, rich = live()
    record = make_run(validate_every=0)[0]
    console.step(record)
    assert "reward errors" not in picture(console, rich)
    record["agents"]["medium"] |= {"reward_errors": 3, "skipped_updates": 1}
    console.step(record)
    text = picture(console, rich)
    assert "reward errors" in text and "skipped updates" in text


@pytest.mark.parametrize("make", [plain, live])
def test_text_of_a_model_cannot_act_or_style(make):
    console, out = make()
    console.rollouts([RolloutSample(1, "small", HOSTILE, HOSTILE, 0.5, HOSTILE, {"small": -0.5}, True)])
    console.note(HOSTILE)
    text = out.getvalue() if make is plain else out.file.getvalue()
    bare = re.sub(r"\x1b\[[\d;]*m", "", text)  # colours of our own
    assert "\x1b" not in bare and "\x07" not in text and "\x9b" not in text and "\u202e" not in text
    flat = re.sub(r"[\s│]+", "", bare)
    assert flat.count(r"\x1b[2J\x1b]0;title\x07\r\x9b31m\u202egnp.exe[boldred]markup[/]:smile:\ud800\x00") == 4
    assert "advantagesmall-0.50" in flat and "cutoff" in flat and "你好" in flat


def test_a_long_response_stays_short():
    console, out = plain()
    console.rollouts([RolloutSample(1, "small", "p" * 10_000, "\n".join("r" * 5000), 1.0)])
    assert len(out.getvalue()) < 1500 and "more characters" in out.getvalue()


def test_time_left_and_change_since_the_first_validation(make_run):
    progress = Progress(steps=10, done=4)
    assert progress.seconds_left() is None
    progress.step({"step": 5, "time": {"total": 10.0}})
    progress.step({"step": 6, "time": {"total": 20.0}})
    assert progress.seconds_left() == 60.0
    score = {"small": {"greedy": {"accuracy": 0.25, "problems": 8}}}
    assert progress.validation({"step": 0, "validation": score}) == {("greedy", "accuracy"): {"small": (0.25, None)}}
    later = {"small": {"greedy": {"accuracy": 0.5, "problems": 8}}}
    for _ in range(2):
        assert progress.validation({"step": 6, "validation": later})[("greedy", "accuracy")]["small"] == (0.5, 0.25)
