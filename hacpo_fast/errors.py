"""The one exception that is a message to the user."""


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, where, and what to do about it.

    Programs print the message alone, without a traceback.
    """
