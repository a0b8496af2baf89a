"""Is the Hugging Face hub there at all?"""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from urllib.parse import urlsplit

from hacpo_fast.errors import UserError

SECONDS = 10.0
"""In which a connection must be made, of all addresses together; slow ones take one or two."""

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def stay_offline_unless_reachable() -> list[str]:
    """Tries to connect to the hub once; if that fails, sets HF_HUB_OFFLINE for this process and says so in a note.

    The hub's libraries look into their cache at once then. Without that they try every file of every model six times,
    with pauses that add up to minutes. They read the variable when they are imported: call this before. Nothing is
    tried, and nothing set, where the user has decided, or where a proxy stands between.

    Raises UserError where HF_ENDPOINT is no address.
    """
    if any(os.environ.get(name) for name in _OFFLINE):
        return []
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        address = urlsplit(endpoint)
        host, port = (address.hostname or "").encode("idna").decode(), address.port
    except ValueError:  # UnicodeError is one
        host, port = "", None
    if not host or address.scheme not in ("http", "https"):
        raise UserError(f"HF_ENDPOINT: {endpoint!r} is no address such as https://huggingface.co; mend or unset it")
    if address.scheme in urllib.request.getproxies() or "all" in urllib.request.getproxies():
        return []
    try:
        _connect(host, port or (80 if address.scheme == "http" else 443))
    except OSError as error:
        os.environ["HF_HUB_OFFLINE"] = "1"
        return [
            f"{host} cannot be reached ({error}): of the hub's models and data sets, only those that an "
            "earlier download left in the cache are looked at"
        ]
    return []


def _connect(host: str, port: int) -> None:
    """Raises OSError where no address of the host takes a connection."""
    deadline = time.monotonic() + SECONDS
    failure: OSError = TimeoutError("timed out")
    for _, _, _, _, (place, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            # Half of what is left, so that one silent address (IPv6 behind a bad router) is not the end.
            with socket.create_connection((place, port), timeout=max(0.1, (deadline - time.monotonic()) / 2)):
                return
        except OSError as error:
            failure = error
    raise failure
