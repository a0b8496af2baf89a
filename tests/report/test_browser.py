"""The page in a real browser: what a person sees and can do."""

from __future__ import annotations

import json

import made_runs
import pytest
from browser import Browser

from hacpo_fast.report.__main__ import main

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tab():
    tab = Browser()
    yield tab
    tab.close()


def show(tab, folders):
    """Opens the report of runs, which must not complain or load anything."""
    page = folders[0].parent / "report.html"
    assert main([*map(str, folders), "--output", str(page)]) == 0
    tab.open(page)
    assert tab.errors == []
    assert tab.requests == [page.as_uri()]


def count(tab, selector):
    return tab.js(f"document.querySelectorAll({selector!r}).length")


def centre(tab, selector, part=0.5):
    """A place within an element after it was scrolled into view: `part` of the way from its left edge."""
    return tab.js(
        f"(() => {{ const e = document.querySelector({selector!r});"
        "e.scrollIntoView({ block: 'center', behavior: 'instant' });"
        f"const b = e.getBoundingClientRect(); return [b.left + {part} * b.width, b.top + b.height / 2]; }})()"
    )


LEARNING = "section[aria-label=Learning] figure .plot"
PLAIN_RUN = {"metrics": made_runs.records(), "rollouts": made_runs.samples(6, 2), "config": made_runs.settings()}


def broken():
    """Killed in its third step, never validated, one agent, much of it missing or not a number."""
    metrics = made_runs.records(steps=3, agents=1, sharing=False, validate_every=0)
    metrics[1]["agents"]["ada"] |= {"entropy": None, "reward": float("nan"), "own_ratio_std": None}
    metrics[2]["agents"]["ada"] = {"updates": 12, "reward": 0.5, "loss": float("inf")}
    del metrics[0]["time"]
    return {"metrics": metrics}


def long():
    metrics = made_runs.records(steps=300, agents=2, validate_every=100)
    return {"metrics": metrics, "config": made_runs.settings()}


KINDS = {
    "two runs": [PLAIN_RUN, {"metrics": made_runs.records(agents=3, sharing=False), "config": made_runs.settings(3)}],
    "killed": [broken()],
    "six agents": [{"metrics": made_runs.records(agents=6), "rollouts": made_runs.samples(2, 6)}],
    "one step": [{"metrics": made_runs.records(steps=1, validate_every=0)}],
    "validation only": [{"metrics": made_runs.records(steps=0, validate_every=1)}],
    "long": [long()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_drawn_wide_and_narrow_light_and_dark(tab, tmp_path, kind):
    show(tab, [made_runs.write(tmp_path / f"run{at}", **run) for at, run in enumerate(KINDS[kind])])
    assert count(tab, "figure svg") >= count(tab, "figure") > 0
    for width, dark in ((1280, False), (360, True)):
        tab.look(width, 900, dark)
        assert tab.js("document.documentElement.scrollWidth") <= width, "nothing sticks out of a narrow window"
        assert (
            tab.js("Math.max(...[...document.querySelectorAll('figure svg')].map((e) => e.viewBox.baseVal.width))")
            < width
        )
        background = tab.js("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
        text = tab.js("document.body.textContent.replace(document.getElementById('data').textContent, '')")
        drawn = tab.js("[...document.querySelectorAll('figure svg *')].map((e) => e.outerHTML).join()")
        assert not [wrong for wrong in ("NaN", "Infinity", "[object", "null") if wrong in drawn]
        script = tab.js("document.querySelector('body > script:last-of-type').textContent")
        text = text.replace(script, "")
        assert not [wrong for wrong in ("NaN", "Infinity", "[object", "undefined") if wrong in text]


def test_hostile_text_is_only_shown(tab, tmp_path):
    folder = made_runs.write(
        tmp_path / "run", made_runs.records(), made_runs.samples(2, 2, made_runs.HOSTILE), made_runs.settings(),
        [{"after_step": 0, "command": [made_runs.HOSTILE], "python": "3"}],
    )  # fmt: skip
    show(tab, [folder])
    assert tab.js("window.harmed") is None and count(tab, "img, iframe, object") == 0 and count(tab, "script") == 2
    shown = tab.js("document.querySelector('.text.response').textContent")
    for part in ("</script><script>window.harmed = 1</script>", "{{script}}", "&amp;", "数学", "😀", "\\u003c"):
        assert part in shown
    signs = tab.js(
        "[...document.querySelectorAll('.sample:first-child .text.response .sign')].map((e) => e.textContent)"
    )
    assert signs == ["U+2028", "U+2029", "U+0000", "U+001B", "U+202E", "U+200B", "U+D800"]


def test_a_comparison_alone_is_a_table_that_can_be_sorted(tab, tmp_path):
    rows = [
        {"pair": "sums", "method": "gspo", "final": 0.5, "final \u00b1": 0.021, "live": None, "cpu s": 9.5},
        {"pair": "sums", "method": "hacpo", "final": 0.75, "final \u00b1": 0.1, "live": 0.3, "cpu s": 10.5},
        {"pair": "sums", "method": "naive", "final": 0.25, "final \u00b1": None, "live": 0.9, "cpu s": 11.5},
    ]
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "table.json").write_text(json.dumps(rows))
    show(tab, [folder])
    assert count(tab, "nav a") == count(tab, "h2") == 0, "the title stands once"
    assert tab.js("document.getElementById('bar').offsetHeight") == 0
    shown = "[...document.querySelectorAll('tbody tr')].map((row) => [...row.children].map((e) => e.textContent))"
    plain = [
        ["sums \u00b7 gspo", "50.0 \u00b1 2.1", "\u2013", "9.50"],
        ["sums \u00b7 hacpo", "75.0 \u00b1 10.0", "30.0", "10.5"],
        ["sums \u00b7 naive", "25.0", "90.0", "11.5"],
    ]
    assert tab.js(shown) == plain
    click = "document.querySelectorAll('thead button')[{}].click()"
    for column, wanted, way in ((1, [1, 0, 2], "descending"), (1, [2, 0, 1], "ascending"), (0, [0, 1, 2], "ascending")):
        tab.js(click.format(column))
        assert tab.js(shown) == [plain[row] for row in wanted]
        sorts = tab.js("[...document.querySelectorAll('thead th')].map((e) => e.getAttribute('aria-sort'))")
        assert sorts == [way if at == column else None for at in range(4)]
    arrow = "[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth === e.clientWidth)"
    assert tab.js(arrow), "the arrow of the last column fits in"
    for _ in range(2):
        tab.js(click.format(2))
        assert tab.js(shown)[-1] == plain[0], "what is missing comes last, whichever way"


def test_words_stand_left_and_what_is_missing_stands_right(tab, tmp_path):
    rows = [{"method": name, "live": None, "rollouts": 3, "why": "because"} for name in ("hacpo", "gspo")]
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "table.json").write_text(json.dumps(rows))
    show(tab, [tmp_path / "cpu"])
    sides = "[...document.querySelectorAll('tbody tr:first-child > *')].map((e) => getComputedStyle(e).textAlign)"
    assert tab.js(sides) == ["left", "right", "right", "left"]


def test_no_two_agents_look_alike(tab, tmp_path):
    show(tab, [made_runs.write(tmp_path / "run", made_runs.records(agents=7))])
    marks = tab.js("[...document.querySelectorAll('#controls .swatch line')].map((e) => e.getAttribute('style'))")
    curves = tab.js(f"[...document.querySelectorAll({LEARNING!r})][0].querySelectorAll('.curve').length")
    assert len(set(marks)) == len(marks) == curves == 7


def test_names_stay_inside_their_chart(tab, tmp_path):
    long = "a-model-with-a-name-that-is-as-long-as-names-may-be-" * 2
    metrics = made_runs.records()
    for record in metrics:
        for kind in {"agents", "validation"} & record.keys():
            record[kind] = {long + name: values for name, values in record[kind].items()}
    show(tab, [made_runs.write(tmp_path / "run", metrics)])
    for width in (360, 1280):
        tab.look(width, 900, dark=False)
        edges = "[...document.querySelectorAll('svg .end')].map((e) => e.getBoundingClientRect().right)"
        box = "document.querySelector('figure.wide{}').getBoundingClientRect().{}"
        assert len(tab.js(edges)) == 2 and max(tab.js(edges)) < tab.js(box.format("", "right"))
        assert tab.js(box.format(" .curve", "width")) > 0.4 * tab.js(box.format("", "width")), "nor push it out"
        assert tab.js("document.documentElement.scrollWidth") <= width


def test_a_missing_value_is_a_gap_and_not_zero(tab, tmp_path):
    show(tab, [made_runs.write(tmp_path / "run", **broken())])
    drawn = "document.querySelector('figure[aria-label^=\"Training reward\"] .curve').getAttribute('d')"
    assert tab.js(drawn).count("M") == 2 and "L" not in tab.js(drawn)


def test_a_curve_that_lies_under_another_is_wider(tab, tmp_path):
    metrics = made_runs.records(validate_every=0, agents=3)
    for record in metrics:
        ada, bea, cy = record["agents"].values()
        bea["entropy"] = cy["entropy"] = ada["entropy"]
        bea["kl"] = ada["kl"] + 1e-4
        cy["kl"] = ada["kl"] if record["step"] < 6 else 2.0
    show(tab, [made_runs.write(tmp_path / "run", metrics)])
    widths = (
        "[...document.querySelectorAll('figure[aria-label^=\"{}\"] .{}')]"
        ".map((e) => parseFloat(getComputedStyle(e).strokeWidth))"
    )
    for part, plain in (("curve", 1.8), ("dots", 5)):
        assert tab.js(widths.format("Entropy", part)) == pytest.approx([plain + 8, plain + 4, plain])
        assert tab.js(widths.format("KL", part)) == pytest.approx([plain + 4, plain, plain])
        assert tab.js(widths.format("Training reward", part)) == pytest.approx([plain] * 3)


def test_rollouts_come_before_the_times_of_agents_which_are_folded(tab, tmp_path):
    metrics = made_runs.records()
    for record in metrics:
        for values in record.get("agents", {}).values():
            values["time"] = {"learn/forward": 0.5 * record["step"]}
    show(tab, [made_runs.write(tmp_path / "run", metrics)])
    titles = tab.js("[...document.querySelectorAll('section')].map((e) => e.getAttribute('aria-label'))")
    assert titles[-6:-2] == ["Throughput", "Rollouts", "Time by agent", "Settings"]
    section = "section[aria-label='Time by agent']"
    visible = f'document.querySelector("{section} .plot").checkVisibility()'
    assert tab.js(visible) is False
    tab.js(f'document.querySelector("{section} summary").click()')
    tab.look(1280, 900, dark=False)
    assert tab.js(visible) is True
    width = tab.js(f'document.querySelector("{section} .plot svg").viewBox.baseVal.width')
    assert width > 300, "drawn anew in its size"


def test_pointing_at_a_chart_reads_its_values(tab, tmp_path):
    metrics = PLAIN_RUN["metrics"]
    show(tab, [made_runs.write(tmp_path / "run", **PLAIN_RUN)])
    tab.move(*centre(tab, LEARNING, part=0.99))
    accuracy = [f"{100 * metrics[-2]['agents'][name]['accuracy']:.1f}" for name in ("ada", "bea")]
    assert tab.js("document.querySelector('#tip h4').textContent") == "step 6"
    assert (
        tab.js("[...document.querySelectorAll('#tip b')].map((e) => parseFloat(e.textContent).toFixed(1))") == accuracy
    )
    assert count(tab, "line.cursor") > 5, "the same step is marked in all charts"
    tab.js(f"document.querySelector({LEARNING!r}).parentElement.focus()")
    tab.key("Home")
    assert tab.js("document.querySelector('#tip h4').textContent") == "step 1"
    tab.key("ArrowRight")
    assert tab.js("document.getElementById('spoken').textContent").startswith("step 2: ada ")
    tab.key("Escape")
    assert tab.js("document.getElementById('tip').hidden") and count(tab, "line.cursor") == 0


def test_legend_axis_and_zoom(tab, tmp_path):
    show(tab, [made_runs.write(tmp_path / "run", **PLAIN_RUN)])
    chart, label = f"{LEARNING} .curve", f"{LEARNING} svg > text:last-of-type"
    before = count(tab, chart)
    tab.js("document.querySelector('.chip[data-key=\"agent bea\"]').click()")
    assert count(tab, chart) == before // 2
    assert tab.js("document.querySelector('.chip[data-key=\"agent bea\"]').getAttribute('aria-pressed')") == "false"
    tab.js("document.querySelector('.chip[data-key=\"agent bea\"]').click()")
    assert count(tab, chart) == before
    assert tab.js(f"document.querySelector({label!r}).textContent") == "training step"
    select = "document.querySelector('[data-key=axis] select')"
    tab.js(f"{select}.value = 'updates'; {select}.dispatchEvent(new Event('change'))")
    assert tab.js(f"document.querySelector({label!r}).textContent") == "optimiser updates"
    tab.js(f"{select}.value = 'step'; {select}.dispatchEvent(new Event('change'))")
    drawn = tab.js(f"document.querySelector({chart!r}).getAttribute('d')")
    x, y = centre(tab, LEARNING)
    tab.drag(x, y, x + 90)
    assert tab.js(f"document.querySelector({chart!r}).getAttribute('d')") != drawn
    tab.js("document.querySelector('[data-key=zoom]').click()")
    assert tab.js(f"document.querySelector({chart!r}).getAttribute('d')") == drawn


def test_rollouts_are_browsed_by_step_source_reward_and_words(tab, tmp_path):
    rollouts = made_runs.samples(6, 2)
    rollouts[5] |= {"response": "a pelican", "dropped": True}
    show(tab, [made_runs.write(tmp_path / "run", made_runs.records(), rollouts)])
    shown = "[...document.querySelectorAll('.sample')].map((e) => e.querySelector('header').textContent)"
    assert len(tab.js(shown)) == 8 and all("step 6" in text for text in tab.js(shown))
    choose = """(name, value) => {
        const labels = [...document.querySelectorAll('.filters label')];
        const control = labels.find((label) => label.textContent.startsWith(name)).querySelector('select, input');
        control.value = value;
        control.dispatchEvent(new Event(control.tagName === 'SELECT' ? 'change' : 'input'));
    }"""
    tab.js(f"({choose})('Step', 1)")
    assert all("step 2" in text for text in tab.js(shown))
    tab.js(f"({choose})('Answered', 'bea')")
    assert [text[:3] for text in tab.js(shown)] == ["bea"] * 4
    tab.js(f"({choose})('Reward', 'right')")
    (text,) = tab.js(shown)
    assert "right" in text and "reward 1.00" in text
    tab.js(f"({choose})('Reward', ''); ({choose})('Answered', '')")
    tab.js("document.querySelector('.filters input[type=checkbox]').click()")
    assert len(tab.js(shown)) == 48
    search = "document.querySelector('input[type=search]')"
    tab.js(f"{search}.value = 'PELICAN'; {search}.dispatchEvent(new Event('input'))")
    (text,) = tab.js(shown)
    assert "bea" in text and "step 1" in text and "dropped" in text
    advantages = tab.js("[...document.querySelectorAll('.sample .advantages b')].map((e) => e.textContent)")
    assert advantages == ["\u22120.60", "\u22120.60"]


def test_runs_are_called_by_what_tells_them_apart(tab, tmp_path):
    names = [f"quickstart-{name}-20261130-20243{at}" for at, name in enumerate(("hacpo", "gspo"))]
    show(tab, [made_runs.write(tmp_path / name, **PLAIN_RUN) for name in names])
    rows = tab.js("[...document.querySelectorAll('section[aria-label=Results] tbody th')].map((e) => e.textContent)")
    assert rows == ["hacpo \u00b7 ada", "hacpo \u00b7 bea", "gspo \u00b7 ada", "gspo \u00b7 bea"]
    whole = "section[aria-label=Results] tbody th [title], #controls .chip[title], svg .end title"
    titles = f"[...document.querySelectorAll({whole!r})].map((e) => e.getAttribute('title') || e.textContent)"
    assert len(tab.js(titles)) == 4 + 2 + 4 and set(tab.js(titles)) == set(names)
    assert [
        text.split(" ")[0] for text in tab.js("[...document.querySelectorAll('.fact')].map((e) => e.textContent)")
    ] == names


def test_a_table_that_goes_on_to_the_right_fades_there(tab, tmp_path):
    show(tab, [made_runs.write(tmp_path / "run", **PLAIN_RUN)])
    fades = "getComputedStyle(document.querySelector('section[aria-label=Results] .scroll')).maskImage !== 'none'"
    assert not tab.js(fades)
    tab.look(500, 900, dark=False)
    assert tab.js(fades)
    tab.js("document.querySelector('section[aria-label=Results] .scroll').scrollLeft = 5000")
    tab.look(500, 901, dark=False)
    assert not tab.js(fades)
