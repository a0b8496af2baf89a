"""Tables of what the cells gave: for people (Markdown) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hacpo_fast.compare.statistics import Estimate, estimate, paired
from hacpo_fast.errors import UserError

Row = dict[str, Any]
"""One pair and method: `Estimate`s and numbers by column."""
Runs = dict[int, dict[str, Any]]
"""Results of one pair and method by seed."""
COSTS = ("rollouts", "updates", "cpu s")


def rows(results: Iterable[dict[str, Any]], pairs: Sequence[str], methods: Sequence[str], reference: str) -> list[Row]:
    """Pairs and methods in the order given, without those that have no result yet.

    Per agent: accuracy before and after, mean training reward over the steps, updates. Over both: the mean accuracy,
    its difference from the reference method by seed, the share of others' responses that were live.
    """
    by_cell = _by_cell(results)
    table = []
    for pair in pairs:
        for method in methods:
            runs = by_cell[pair, method]
            if runs:
                difference = paired(_both(runs), _both(by_cell[pair, reference])) if method != reference else None
                table.append(_row(pair, method, runs, difference))
    return table


def _row(pair: str, method: str, runs: Runs, difference: Estimate | None) -> Row:
    results = list(runs.values())
    names = list(results[0]["agents"])
    row: Row = {"pair": pair, "method": method, "seeds": len(results)}
    for name in names:
        agents = [result["agents"][name] for result in results]
        row[f"{name} start"] = estimate([agent["start"] for agent in agents])
        row[f"{name} final"] = estimate([agent["final"] for agent in agents])
    row["both final"] = estimate(list(_both(runs).values()))
    row["both - reference"] = difference
    for name in names:
        agents = [result["agents"][name] for result in results]
        row[f"{name} reward"] = estimate([agent["training_reward"] for agent in agents])
    live = [share for result in results for name in names for share in result["agents"][name]["steps"]["cross_live"]]
    live = [share for share in live if share is not None]
    row["live"] = math.fsum(live) / len(live) if live else None
    row |= _costs(results)
    row["answers"] = min(result["answers"] for result in results)
    return row


def markdown(table: Sequence[Row], reference: str) -> str:
    """One table per pair; accuracies and rewards in percent, mean ± half of the 95 % interval."""
    parts = []
    for pair in dict.fromkeys(row["pair"] for row in table):
        chosen = [row for row in table if row["pair"] == pair]
        columns = [column for column in chosen[0] if column not in ("pair", "answers")]
        heads = [f"Δ {reference}" if column == "both - reference" else column for column in columns]
        lines = [f"**{pair}** ({chosen[0]['answers']} answers per agent and evaluation)", ""]
        lines += ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(columns) - 1) + "|"]
        lines += ["| " + " | ".join(_written(column, row[column]) for column in columns) + " |" for row in chosen]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _written(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Estimate):
        sign = "+" if column == "both - reference" else ""
        half = "" if math.isnan(value.half) else f" ± {100 * value.half:.1f}"
        return f"{100 * value.mean:{sign}.1f}{half}"
    if column == "live":
        return f"{100 * value:.0f} %"
    if column == "cpu s":
        return f"{value:.1f}"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def summary(results: Iterable[dict[str, Any]], pairs: Sequence[str], methods: Sequence[str], reference: str) -> str:
    """One table of all pairs in Markdown: final accuracy over both agents in percent, and what it cost.

    Differences from the reference, of that accuracy and of the mean training reward, are means over the pairs, seed by
    seed, of the seeds that all pairs have.
    """
    by_cell = _by_cell(results)
    pairs = [pair for pair in pairs if any(by_cell[pair, method] for method in methods)]
    heads = ["method", *pairs, f"Δ {reference}", "Δ reward", "answers", "updates", "cpu s"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    compared = [by_cell[pair, reference] for pair in pairs]
    for method in methods:
        runs = [by_cell[pair, method] for pair in pairs]
        if pairs and all(runs):
            values = [_written("both final", estimate(list(_both(of_pair).values()))) for of_pair in runs]
            for what in ("final", "training_reward"):
                difference = paired(_over_pairs(runs, what), _over_pairs(compared, what))
                values.append(_written("both - reference", difference if method != reference else None))
            costs = _costs([result for of_pair in runs for result in of_pair.values()])
            values += [_written(key, costs[key]) for key in COSTS]
            lines.append("| " + " | ".join([method, *values]) + " |")
    return "\n".join(lines) + "\n"


def comma_separated(table: Sequence[Row]) -> str:
    """The same numbers as fractions: every estimate as two columns, mean and half-width."""
    text = io.StringIO()
    flat = [flattened(row) for row in table]
    writer = csv.DictWriter(text, fieldnames=list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def flattened(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for column, value in row.items():
        if isinstance(value, Estimate) or column == "both - reference":
            flat[column] = value.mean if value else None
            flat[f"{column} ±"] = value.half if value and not math.isnan(value.half) else None
        else:
            flat[column] = value
    return flat


def write(folder: Path, table: Sequence[Row], reference: str) -> str:
    """Writes table.md, table.csv and table.json into `folder`; returns the first."""
    text = markdown(table, reference)
    (folder / "table.md").write_text(text)
    (folder / "table.csv").write_text(comma_separated(table))
    (folder / "table.json").write_text(json.dumps([flattened(row) for row in table], indent=1) + "\n")
    return text


def check_document(document: Path, names: Iterable[str]) -> None:
    """Raises UserError where `replace_in` would find no place for any of these texts."""
    marks = [_marks(name) for name in names]
    text = _read(document)
    if not any(end in text.partition(begin)[2] for begin, end in marks):
        wanted = " or ".join(f"{begin.strip()} and {end}" for begin, end in marks)
        raise UserError(f"--into: {document} has no lines {wanted}")


def replace_in(document: Path, texts: dict[str, str]) -> None:
    """Puts each text between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a document, where it has them.

    Raises UserError if it has those of none.
    """
    check_document(document, texts)
    old = new = _read(document)
    for name, text in texts.items():
        begin, end = _marks(name)
        before, found, rest = new.partition(begin)
        _, ended, after = rest.partition(end)
        if found and ended:
            new = before + begin + text + end + after
    if new != old:
        document.write_text(new)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->"


def _read(document: Path) -> str:
    if not document.is_file():
        raise UserError(f"--into: there is no document {document}")
    try:
        return document.read_text()
    except UnicodeDecodeError as error:
        raise UserError(f"--into: {document} is no text in UTF-8 ({error})") from None


def _by_cell(results: Iterable[dict[str, Any]]) -> dict[tuple[str, str], Runs]:
    """By pair and method."""
    by_cell: dict[tuple[str, str], Runs] = defaultdict(dict)
    for result in results:
        by_cell[result["pair"], result["method"]][result["seed"]] = result
    return by_cell


def _both(runs: Runs, what: str = "final") -> dict[int, float]:
    """A number of the agents by seed, in the mean of both."""
    return {seed: _mean(agent[what] for agent in result["agents"].values()) for seed, result in runs.items()}


def _over_pairs(runs: Sequence[Runs], what: str) -> dict[int, float]:
    """The mean of that over the pairs, for the seeds that all of them have."""
    both = [_both(of_pair, what) for of_pair in runs]
    return {seed: _mean(of_pair[seed] for of_pair in both) for seed in set.intersection(*map(set, both))}


def _costs(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """COSTS of a run, of both agents together, in the mean over `results`."""
    agents = [list(result["agents"].values()) for result in results]
    counts = {key: _mean(sum(agent[key] for agent in both) for both in agents) for key in ("rollouts", "updates")}
    return counts | {"cpu s": _mean(result["cpu_seconds"] for result in results)}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)
