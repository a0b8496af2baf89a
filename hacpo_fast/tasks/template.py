"""Prompts as templates over the fields of a row."""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.names import instead_of

_FIELD = re.compile(r"([^\[\]]+)((?:\[[^\[\]]+\])*)")
_BRACES = "write {{ and }} for braces that belong to the text, as in \\boxed{{}}"


class Template:
    """A text with `{field}` and `{field[key or index]}` in it, filled in from a row.

    The syntax is that of `str.format` without attributes, conversions and format specifications, so a template can read
    the row and nothing else. What it reads is inserted as it is: braces in a row's values mean nothing.
    """

    def __init__(self, text: str) -> None:
        """Raises UserError where `text` is not a template."""
        self.text = text
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise UserError(f"the template '{text}' cannot be read ({error}); {_BRACES}") from None
        self._parts = [(literal, self._path(name, spec, conversion)) for literal, name, spec, conversion in parts]

    def _path(self, name: str | None, spec: str | None, conversion: str | None) -> tuple[str, ...]:
        """The keys that lead from a row to a value; none where the literal text before is all there is."""
        if name is None:
            return ()
        match = _FIELD.fullmatch(name)
        if spec or conversion or not match:
            raise UserError(
                f"the template '{self.text}': fields look like {{name}} or {{name[key]}}, with no ':' or '!'; {_BRACES}"
            )
        field, keys = match.groups()
        return (field, *re.findall(r"\[([^\[\]]+)\]", keys))

    def fill(self, row: Mapping[str, Any]) -> str:
        """The text for `row`. Raises UserError where a field is missing or empty (null)."""
        return "".join(literal + (self._value(row, path) if path else "") for literal, path in self._parts)

    def _value(self, row: Mapping[str, Any], path: tuple[str, ...]) -> str:
        value: Any = row
        for depth, key in enumerate(path):
            value = self._step(value, key, path[:depth])
        if value is None:
            raise UserError(f"the field {_written(path)} of the template '{self.text}' is null")
        return str(value)

    def _step(self, value: Any, key: str, above: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            # Keys of nested generators' metadata may be numbers, and a template can only spell text.
            for candidate in (key, int(key)) if key.isdecimal() else (key,):
                if candidate in value:
                    return value[candidate]
            there = instead_of(key, value)
        elif isinstance(value, (list, tuple)):
            if key.isdecimal() and int(key) < len(value):
                return value[int(key)]
            there = f"there are {len(value)} items, numbered from 0"
        else:
            there = f"{_written(above)} is a {type(value).__name__}, which has no parts"
        raise UserError(f"no field {_written((*above, key))} for the template '{self.text}': {there}")


def _written(path: tuple[str, ...]) -> str:
    return "{" + path[0] + "".join(f"[{key}]" for key in path[1:]) + "}"
