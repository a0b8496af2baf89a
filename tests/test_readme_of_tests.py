"""tests/README.md names tests that exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_test_that_is_named_exists():
    named = NAMED.findall((TESTS / "README.md").read_text())
    assert len(named) > 40
    for file, name in named:
        functions = {
            node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, f"{file} has no {name}"


def test_every_fault_has_a_test():
    rows = [line for line in (TESTS / "README.md").read_text().splitlines() if re.match(r"\| .*\b\d{2,5}\b.* \|", line)]
    assert len(rows) >= 25
    for row in rows:
        assert NAMED.search(row), row
