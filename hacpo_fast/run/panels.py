"""The panels of curves.png: each draws one question about a run into a pair of axes. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hacpo_fast.run.cells import change, percent
from hacpo_fast.run.curve_data import RunCurves, Series, in_columns, smooth
from hacpo_fast.run.palette import PHASES, agent_colour

Panel = Callable[[Axes, RunCurves], None]

INK, FAINT = "#333333", "#888888"
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#CCCCCC",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#EBEBEB",
    "grid.linewidth": 0.8,
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
FEW = 40
"""Steps up to which every one gets a dot and noise is not smoothed."""
COLUMNS = 120
"""Most columns of the panel of times."""
LETTER = 0.0092
"""Width of a letter of a label as a share of the first panel's width."""
WIDER = 2.4
"""Points by which a curve is wider than one that would hide it."""
DASHES = ("-", "--", ":", "-.")


def chosen(curves: RunCurves) -> list[Panel]:
    """The panels that have something to show, the most important first."""
    panels: list[tuple[bool, Panel]] = [
        (bool(curves.samplings()), validation),
        (curves.has("reward"), partial(metric, name="reward", title="Training reward")),
        (curves.has("response_tokens"), partial(metric, name="response_tokens", title="Response length (tokens)")),
        (curves.has("own_ratio_mean"), partial(ratio, kind="own", title="Own ratio before clipping")),
        (curves.has("cross_ratio_mean"), partial(ratio, kind="cross", title="Cross ratio before clipping")),
        (curves.has("cross_live"), shared),
        (curves.has("entropy"), partial(metric, name="entropy", title="Entropy (nats)")),
        (bool(curves.time()), times),
    ]
    return [panel for wanted, panel in panels if wanted]


def validation(axes: Axes, curves: RunCurves) -> None:
    """Scores on held-out problems, the first way of sampling with its start and end in numbers."""
    main, *others = curves.samplings()
    axes.set_title(f"Validation: {curves.score(main)}, {main}")
    drawn: list[tuple[str, str, Series]] = []
    for agent, colour in _agents(curves):
        for sampling, dashes in zip(others, DASHES[1:], strict=False):
            axes.plot(*curves.validation(agent, sampling).known(), dashes, color=colour, alpha=0.55, linewidth=1.1)
        series = curves.validation(agent, main).known()
        axes.plot(*series, "o-", color=colour, markersize=4.5, linewidth=2.2)
        if series.steps:
            drawn.append((agent, colour, series))
    if others:
        names = [
            (f"{name} {curves.score(name)}", dashes) for name, dashes in zip([main, *others], DASHES, strict=False)
        ]
        _line_styles(axes, names)
    _steps(axes, curves)
    if drawn:
        _name_ends(axes, drawn)


def _name_ends(axes: Axes, drawn: list[tuple[str, str, Series]]) -> None:
    """Start and end of each (agent, colour, series) in numbers, beside the curves, without overlaps."""
    values = [value for *_, series in drawn for value in series.values]
    shares = all(0 <= value <= 1 for value in values)
    if shares:
        axes.yaxis.set_major_formatter(_percents())
        axes.set_ylim(bottom=0)  # heights can be compared as shares
    low, high = axes.get_ylim()
    ends = _apart([series.values[-1] for *_, series in drawn], 0.085 * (high - low))
    starts = _apart([series.values[0] for *_, series in drawn], 0.085 * (high - low))
    longest = 0
    for (agent, colour, series), start, end in zip(drawn, starts, ends, strict=True):
        first, last = series.values[0], series.values[-1]
        label = f"{agent}  {percent(last) if shares else f'{last:.3g}'}"
        if len(series.values) > 1:
            label += f" ({change(last, first) if shares else f'{last - first:+.3g}'})"
            _beside(axes, percent(first) if shares else f"{first:.3g}", (series.steps[0], start), colour, -9)
        _beside(axes, label, (series.steps[-1], end), colour, 9)
        longest = max(longest, len(label))
    # Room for the labels inside the axes, or all panels would have to shrink.
    left, right = axes.get_xlim()
    before = 0.08 if any(len(series.values) > 1 for *_, series in drawn) else 0.0
    after = 0.02 + LETTER * longest
    width = (right - left) / (1 - before - after)
    axes.set_xlim(left - before * width, right + after * width)
    axes.set_ylim(min(low, *starts, *ends), max(high, *starts, *ends))


def metric(axes: Axes, curves: RunCurves, name: str, title: str) -> None:
    """One number per agent and step."""
    axes.set_title(title)
    drawn = [curves.metric(agent, name) for agent in curves.agents]
    for (_, colour), series, wider in zip(_agents(curves), drawn, widened(drawn), strict=True):
        trace(axes, series, colour, wider=wider)
    _steps(axes, curves)


def ratio(axes: Axes, curves: RunCurves, kind: str, title: str) -> None:
    """Mean of the raw importance ratios, and one standard deviation to either side."""
    axes.set_title(title)
    axes.axhline(1.0, color=FAINT, linewidth=0.8)
    for agent, colour in _agents(curves):
        mean = curves.metric(agent, f"{kind}_ratio_mean")
        std = curves.metric(agent, f"{kind}_ratio_std")
        low = [m - s for m, s in zip(mean.values, std.values, strict=True)]
        high = [m + s for m, s in zip(mean.values, std.values, strict=True)]
        axes.fill_between(mean.steps, low, high, color=colour, alpha=0.13, linewidth=0)
        trace(axes, mean, colour)
    axes.ticklabel_format(axis="y", useOffset=False)
    _steps(axes, curves)


def shared(axes: Axes, curves: RunCurves) -> None:
    """Of the other agents' responses that teach: how many the clip leaves."""
    metric(axes, curves, "cross_live", "Cross responses that are not clipped")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(_percents())


def times(axes: Axes, curves: RunCurves) -> None:
    """Seconds of a step by phase, stacked."""
    series = {name: in_columns(each, COLUMNS) for name, each in curves.time().items()}
    steps = next(iter(series.values())).steps
    # Gaps between many narrow columns would flicker.
    width = (steps[1] - steps[0] if len(steps) > 1 else 1) * (0.86 if len(steps) <= FEW else 1)
    floor = [0.0] * len(steps)
    for name, each in series.items():
        colour = PHASES.get(name, PHASES["other"])
        axes.bar(steps, each.values, width, floor, color=colour, label=name, linewidth=0)
        floor = [below + value for below, value in zip(floor, each.values, strict=True)]
    axes.set_title("Seconds per step")
    axes.set_ylim(0, 1.28 * max(floor))  # room for the legend
    axes.legend(loc="upper right", ncols=len(series), borderaxespad=0.1, handlelength=0.9, columnspacing=1.1)
    axes.grid(axis="x", visible=False)
    _steps(axes, curves)


def name_steps(axes: Axes) -> None:
    axes.set_xlabel("training step", fontsize=8, color=FAINT, loc="right", labelpad=1)


def legend(figure: Figure, curves: RunCurves, title: str | None) -> None:
    """Which colour is which agent, above all panels."""
    lines = [Line2D([], [], color=colour, linewidth=4) for _, colour in _agents(curves)]
    names = [agent for agent, _ in _agents(curves)]
    box = figure.legend(lines, names, loc="outside upper left", ncols=len(names), title=title, fontsize=10)
    box.get_title().set(fontweight="bold", fontsize=12)
    box._legend_box.align = "left"


def _agents(curves: RunCurves) -> list[tuple[str, str]]:
    return [(agent, agent_colour(index)) for index, agent in enumerate(curves.agents)]


def trace(axes: Axes, series: Series, colour: str, dashes: str | tuple = "-", wider: float = 0.0) -> None:
    """A curve: every step of a few with a dot, the trend of many with the noise behind it; `wider` by some points."""
    style = {"linestyle": dashes, "color": colour, "linewidth": STYLE["lines.linewidth"] + wider}
    if len(series.steps) <= FEW:
        axes.plot(*series, **style, marker="o", markersize=2.5 + wider)
    else:  # the noise stays visible behind the trend
        axes.plot(*series, **style | {"alpha": 0.25, "linewidth": 0.8 + wider})
        axes.plot(series.steps, smooth(series.values, len(series.steps) // 20 * 2 + 1), **style)


def widened(drawn: Sequence[Series]) -> list[float]:
    """By how many points each of the curves, which are drawn in this order, has to be wider for the later ones that
    would hide it: those of which nine of ten values differ from its own by less than a hundredth of the height.
    """
    values = [value for series in drawn for value in series.known().values]
    near = 0.01 * (max(values) - min(values)) if values else 0.0

    def hides(later: Series, series: Series) -> bool:
        if later.steps != series.steps:
            return False
        # A gap hides nothing where the other has a value, and NaN is near nothing.
        known = [(a, b) for a, b in zip(later.values, series.values, strict=True) if math.isfinite(b)]
        return bool(known) and sum(abs(a - b) <= near for a, b in known) >= 0.9 * len(known)

    return [WIDER * sum(hides(later, one) for later in drawn[at + 1 :]) for at, one in enumerate(drawn)]


def _steps(axes: Axes, curves: RunCurves) -> None:
    """Whole steps on the x axis, and only those that were made."""
    first, last = curves.span()
    locator = MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10])
    ticks = locator.tick_values(first, last) if last > first else [first]
    axes.set_xticks([tick for tick in ticks if first <= tick <= last])
    margin = max(0.03 * (last - first), 0.6)
    axes.set_xlim(first - margin, last + margin)


def _percents() -> PercentFormatter:
    return PercentFormatter(1.0, decimals=0, symbol=" %")


def _line_styles(axes: Axes, names: list[tuple[str, str]]) -> None:
    """What (label, line style) means, beside the title, where no curve can be."""
    lines = [Line2D([], [], color=FAINT, linestyle=dashes, linewidth=1.2) for _, dashes in names]
    axes.legend(
        lines,
        [label for label, _ in names],
        loc="lower right",
        bbox_to_anchor=(1, 0.98),
        ncols=len(names),
        handlelength=1.6,
        columnspacing=1.1,
        borderaxespad=0,
    )


def _beside(axes: Axes, text: str, point: tuple[float, float], colour: str, offset: float) -> None:
    """Text `offset` points to the right of a point, or to its left where negative."""
    label = axes.annotate(
        text,
        point,
        xytext=(offset, 0),
        textcoords="offset points",
        ha="left" if offset > 0 else "right",
        va="center",
        color=colour,
        fontweight="bold",
        annotation_clip=False,
    )
    label.set_in_layout(False)


def _apart(heights: list[float], gap: float) -> list[float]:
    """Heights moved as little as needed to be at least `gap` apart, in their old order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = list(heights)
    for _ in range(100):  # pushes neighbours apart by half of what they lack, until nobody is pushed
        lacking = [(a, b, gap - (moved[b] - moved[a])) for a, b in pairwise(order)]
        if all(lack <= 1e-3 * gap for *_, lack in lacking):
            break
        for a, b, lack in lacking:
            if lack > 0:
                moved[a] -= lack / 2
                moved[b] += lack / 2
    return moved
