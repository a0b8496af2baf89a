"""The most memory that was in use at once.

CUDA: bytes in torch's allocator (`torch.cuda.max_memory_allocated`), without what libraries take beside it.
CPU: resident bytes of the trainer's process, its libraries included; the kernel itself keeps their peak (VmHWM). Memory
that was freed but not returned to the system counts, and reward processes do not. Where the peak cannot be reset (any
system but Linux, or a sandbox that forbids it), a phase's peak is unknown, and left out rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc(5)


@dataclass
class Peak:
    bytes: int = 0  # 0: not known


class PeakMemory:
    """Measures peaks on `device`, one at a time: starting one forgets what was before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @contextmanager
    def measured(self) -> Iterator[Peak]:
        """Gives a `Peak` that holds the largest size in the block once that is over."""
        peak, known = Peak(), self._reset()
        try:
            yield peak
        finally:
            peak.bytes = self._read() if known else 0

    def _reset(self) -> bool:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return True
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
        except OSError:
            return False
        return True

    def _read(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
