"""One colour per agent, the same in the terminal and in curves.png; told apart by colour-blind readers (Okabe-Ito)."""

from __future__ import annotations

AGENTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D31", "#56B4E9")

AGENTS_ON_DARK = ("#4FA8E0", "#F08A4B", "#2FC79A", "#E3A3C6", "#CBA968", "#9ADCF7")
"""The same hues, light enough for a dark background."""

PHASES = {
    "rollout": "#5B7DB1",
    "verify": "#E0B04C",
    "recompute": "#9BBFA8",
    "learn": "#B5656B",
    "validate": "#A79BC4",
    "other": "#C4C4C4",
}
"""By phase of a step, muted so that nobody takes them for agents; "other" is the rest of "total"."""


def agent_colour(index: int) -> str:
    return AGENTS[index % len(AGENTS)]


def phases(time: dict[str, float | None]) -> dict[str, float]:
    """Seconds by phase, in order of a step, and what "total" leaves for "other"."""
    spent = {name: time.get(name) or 0.0 for name in PHASES if name != "other"}
    spent |= {name: seconds or 0.0 for name, seconds in time.items() if name not in spent | {"other": 0, "total": 0}}
    return spent | {"other": max((time.get("total") or 0.0) - sum(spent.values()), 0.0)}
