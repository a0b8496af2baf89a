"""Which values settings may have: types for the fields of `hacpo_fast.config`, each bound with its reason."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field


def known_device(name: str) -> str:
    """`name`, if devices are called like that. Raises ValueError."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", name):
        raise ValueError(f"'{name}' is not a device; use auto, cpu, cuda or cuda:N")
    return name


def no_path(text: str) -> str | None:
    """Why nothing can be called `text`, on the file systems that there are; None: it could be a path."""
    if "\0" in text:
        return "no path may hold the character 0"
    if max(map(len, text.encode(errors="surrogatepass").split(b"/"))) > 255 or len(text) > 3000:
        return "too long for a path (a name may have 255 bytes, a path 3000 characters)"
    return None


def _path(text: str) -> str:
    if reason := no_path(text):
        raise ValueError(reason)
    return text


Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]
"""Far above any run; products of two still fit into 64 bits, where arrays and other libraries count."""
CountFromZero = Annotated[int, Field(ge=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Processes = Annotated[int, Field(ge=1, le=1024)]
"""Also threads: each is started at once, and a system that is asked for a million stands still."""
Samples = Annotated[int, Field(ge=1, le=100_000)]
Temperature = Annotated[float, Field(ge=0.01, le=100)]
"""vLLM samples at 0.01 whatever is below it, and log-probs at another temperature would not be those of its tokens."""
GiB = Annotated[float, Field(gt=0, le=1e6)]
PathText = Annotated[str, AfterValidator(_path)]

MOST_RESPONSES = 10_000_000
"""Of one step, of all agents: they are in memory at the same time."""

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
"""What names of agents and of ways to sample look like: they become names of folders and of curves."""
