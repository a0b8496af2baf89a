"""The one exception that is a message to the user."""

from collections.abc import Callable, Iterable
from typing import Any


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, where, and what to do about it.

    Programs print the message alone, without a traceback.
    """


def install_hint(extra: str) -> str:
    """How to install an optional part."""
    return f"pip install 'hacpo_fast[{extra}]' (in a clone of the repository: pip install -e '.[{extra}]')"


def all_of(reads: Iterable[Callable[[], Any]]) -> list[Any]:
    """What each of `reads` returns. Where several raise UserError, one that says everything that is wrong, once."""
    found, wrong = [], {}
    for read in reads:
        try:
            found.append(read())
        except UserError as error:
            wrong.setdefault(str(error), error)
    if len(wrong) > 1:
        raise UserError("\n".join([f"{len(wrong)} things are missing or wrong", *(f"- {error}" for error in wrong)]))
    if wrong:
        raise next(iter(wrong.values()))
    return found
