"""Which problems are held out, decided by the problem alone."""

import hashlib


def is_held_out(text: str, share: float) -> bool:
    """Whether the problem `text`, whatever its white space, belongs to the held-out `share` (0 to 1) of all problems.

    A hash decides, not a random draw or a position: the same problem is on the same side in every run, process and
    seed, whatever other problems there are, so nothing that trains can meet what another part measures on.
    """
    digest = hashlib.sha256("".join(text.split()).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share
