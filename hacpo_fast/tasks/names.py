"""Wording shared by error messages that name what there is instead of what was asked for."""

from collections.abc import Iterable
from difflib import get_close_matches


def instead_of(name: object, known: Iterable[object], most: int = 20) -> str:
    """`did you mean 'b'? There are: a, b, c`, for a message about a `name` that is not among the `known` ones."""
    names = [str(one) for one in known]
    if not names:
        return "there are none"
    near = get_close_matches(str(name), names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{hint}There are: {', '.join(names[:most])}{more}"
