"""The page as one file: template, style, script and data put together."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import Any

from hacpo_fast.run.palette import AGENTS, AGENTS_ON_DARK, PHASES

SCRIPTS = (
    "dom.js",
    "format.js",
    "state.js",
    "table.js",
    "chart.js",
    "times.js",
    "geometry.js",
    "curves.js",
    "samples.js",
    "tables.js",
    "settings.js",
    "main.js",
)
"""In the order in which they build on each other; together they are one function."""


def page(data: dict[str, Any]) -> str:
    """ASCII HTML that needs nothing else, and is allowed nothing else: its policy names the hashes of its only script
    and style, so whatever the data holds can neither run nor load anything.
    """
    style = f"\n{_colours()}{_part('report.css')}"
    script = '\n(() => {\n"use strict";\n' + "".join(map(_part, SCRIPTS)) + "})();\n"
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    names = ", ".join([run["name"] for run in data["runs"]] or [table["title"] for table in data["tables"]])
    parts = {
        "policy": policy,
        "title": html.escape(names),
        "style": style,
        "script": script,
        "data": json_in_html(data),
    }
    # In one pass: nothing that is put in is searched for further places.
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("report.html"))
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def json_in_html(data: Any) -> str:
    r"""JSON that can stand in a script element and holds the same values: ASCII (U+2028, surrogates and control
    characters are escapes anyway), with <, > and & as \u escapes, so that no tag or comment can begin or end in it.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _part(name: str) -> str:
    return files("hacpo_fast.report").joinpath("page", name).read_text(encoding="ascii")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _colours() -> str:
    """The project's colours as variables of the style, a set for each scheme."""
    light = "".join(f"--agent-{at}:{colour};" for at, colour in enumerate(AGENTS))
    dark = "".join(f"--agent-{at}:{colour};" for at, colour in enumerate(AGENTS_ON_DARK))
    phases = "".join(f"--phase-{name}:{colour};" for name, colour in PHASES.items())
    return f":root{{{light}{phases}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
