"""The one exception that is a message to the user."""


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, where, and what to do about it.

    Programs print the message alone, without a traceback.
    """


def install_hint(extra: str) -> str:
    """How to install an optional part."""
    return f"pip install 'hacpo_fast[{extra}]' (in a clone of the repository: pip install -e '.[{extra}]')"
