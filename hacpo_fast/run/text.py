"""Text of models and of other people's code, made harmless for a terminal."""

from __future__ import annotations

import unicodedata

UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that can move the cursor, recolour, reorder or hide text, or that have no picture."""


def printable(text: str, limit: int = 1000, lines: int = 1) -> str:
    r"""`text` with everything that could act on a terminal as a visible escape (\x1b, \u202e, ...).

    Line breaks stay, up to `lines` lines, except with lines=1, which gives one line. At most `limit` characters of
    `text` are kept; what is left out is counted.
    """
    text = str(text)
    kept = text[:limit]
    if lines > 1:
        kept = "\n".join(kept.split("\n")[:lines])
    safe = "".join(_escape(char, keep_newline=lines > 1) for char in kept)
    omitted = len(text) - len(kept)
    return f"{safe} [{omitted} more characters]" if omitted else safe


def message(text: str) -> str:
    """A message of the program itself, which may quote data, paths and errors of other people's code."""
    return printable(text, limit=20_000, lines=200)


def _escape(char: str, keep_newline: bool) -> str:
    if char == "\n" and keep_newline:
        return char
    return char.encode("unicode_escape").decode("ascii") if unicodedata.category(char) in UNSAFE else char
