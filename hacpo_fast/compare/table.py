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

from hacpo_fast.compare.cell import read_cell
from hacpo_fast.compare.statistics import Estimate, estimate, paired
from hacpo_fast.errors import UserError

Row = dict[str, Any]
"""One pair and method: `Estimate`s and numbers by column."""


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """Results of all cells in a folder; damaged files count as not there."""
    return [result for path in sorted(folder.glob("*.json")) if (result := read_cell(path)) is not None]


def rows(results: Iterable[dict[str, Any]], pairs: Sequence[str], methods: Sequence[str], reference: str) -> list[Row]:
    """Pairs and methods in the order given, without those that have no result yet.

    Per agent: accuracy before and after, mean training reward over the steps, updates. Over both: the mean accuracy,
    its difference from the reference method by seed, the share of others' responses that were live.
    """
    by_cell: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for result in results:
        by_cell[result["pair"], result["method"]][result["seed"]] = result
    table = []
    for pair in pairs:
        compared = {seed: _both(result) for seed, result in by_cell[pair, reference].items()}
        for method in methods:
            runs = by_cell[pair, method]
            if runs:
                difference = paired({seed: _both(result) for seed, result in runs.items()}, compared)
                table.append(_row(pair, method, list(runs.values()), difference if method != reference else None))
    return table


def _row(pair: str, method: str, results: list[dict[str, Any]], difference: Estimate | None) -> Row:
    names = list(results[0]["agents"])
    row: Row = {"pair": pair, "method": method, "seeds": len(results)}
    for name in names:
        agents = [result["agents"][name] for result in results]
        row[f"{name} start"] = estimate([agent["start"] for agent in agents])
        row[f"{name} final"] = estimate([agent["final"] for agent in agents])
    row["both final"] = estimate([_both(result) for result in results])
    row["both - reference"] = difference
    for name in names:
        agents = [result["agents"][name] for result in results]
        row[f"{name} reward"] = estimate([agent["training_reward"] for agent in agents])
    live = [share for result in results for name in names for share in result["agents"][name]["steps"]["cross_live"]]
    live = [share for share in live if share is not None]
    row["live"] = math.fsum(live) / len(live) if live else None
    row["rollouts"] = _mean(sum(result["agents"][name]["rollouts"] for name in names) for result in results)
    row["updates"] = _mean(sum(result["agents"][name]["updates"] for name in names) for result in results)
    row["cpu s"] = _mean(result["cpu_seconds"] for result in results)
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


def replace_in(document: Path, name: str, text: str) -> None:
    """Puts `text` between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a document."""
    if not document.is_file():
        raise UserError(f"--into: there is no document {document}")
    before, begin, rest = document.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not begin or not end:
        raise UserError(f"--into: {document} has no lines <!-- {name} --> and <!-- end of {name} -->")
    document.write_text(before + begin + text + end + after)


def _both(result: dict[str, Any]) -> float:
    return _mean(agent["final"] for agent in result["agents"].values())


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)
