"""Where the time and the memory of a step go.

A step is a sequence of phases, and a phase has parts:

    phases = Phases(device)
    with phases("learn", "alice"):      # a coarse phase, and who is at work
        with timed("forward"): ...       # anywhere below, also as a decorator; without a phase around it does nothing

Every moment of a phase belongs to one part or to "other", so parts add up to their phase, and phases to the total. The
outermost part counts: what is scored is "score", not the forward pass in it.

On CUDA the device is waited for at the ends of phases only. Parts leave events in the stream, so a part's seconds are
those in which the stream was busy with it, or waited for the host to give it the next kernel: host work that is hidden
behind earlier kernels takes no time here, as it takes none of the step's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.profiler import record_function

from hacpo_fast.run.peak_memory import PeakMemory

OTHER = "other"


class Phases:
    """Wall-clock seconds and peak memory by phase and by who was at work, from its creation on."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._memory = PeakMemory(self._device)
        self._started = time.perf_counter()
        self._spent: Counter[tuple[str, str]] = Counter()
        self._parts: dict[tuple[str, str], Counter[str]] = {}
        self._peaks: dict[tuple[str, str], int] = {}

    @contextmanager
    def __call__(self, phase: str, who: str = "") -> Iterator[None]:
        key = phase, who
        start, timeline = time.perf_counter(), _Timeline(self._device)
        token = _timeline.set(timeline)
        try:
            with self._memory.measured() as peak, record_function(f"{phase} {who}".rstrip()):
                yield
        finally:
            _timeline.reset(token)
            timeline.mark(OTHER)
            if self._device.type == "cuda":  # else queued kernels are charged to whoever waits for them
                torch.cuda.synchronize(self._device)
            self._spent[key] += time.perf_counter() - start
            self._parts.setdefault(key, Counter()).update(timeline.seconds())
            self._peaks[key] = max(self._peaks.get(key, 0), peak.bytes)

    def spent(self, phase: str, who: str) -> float:
        return self._spent[phase, who]

    def seconds(self) -> dict[str, float]:
        """Seconds by phase over everybody, "total" since the creation, and what phases leave of it as "other"."""
        phases: Counter[str] = Counter()
        for (phase, _), seconds in self._spent.items():
            phases[phase] += seconds
        total = time.perf_counter() - self._started
        return {**phases, OTHER: max(0.0, total - sum(phases.values())), "total": total}

    def seconds_of(self, who: str) -> dict[str, float]:
        """Seconds of `who` by "phase", and by "phase/part" where it has parts; with "phase/other" they add up to it."""
        found: dict[str, float] = {}
        for (phase, worker), seconds in self._spent.items():
            if worker != who:
                continue
            found[phase] = seconds
            parts = {name: spent for name, spent in self._parts[phase, who].items() if name != OTHER}
            if parts:
                parts[OTHER] = max(0.0, seconds - sum(parts.values()))
                found |= {f"{phase}/{name}": spent for name, spent in parts.items()}
        return found

    def peaks(self, who: str | None = None) -> dict[str, int]:
        """Largest memory in bytes (see `PeakMemory`) by phase: of `who`, or of everybody."""
        peaks: dict[str, int] = {}
        for (phase, worker), size in self._peaks.items():
            if size and who in (None, worker):
                peaks[phase] = max(peaks.get(phase, 0), size)
        return peaks


class _Timeline:
    """Marks in time, each with the part that ends there. On CUDA a mark is an event in the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.busy = False
        self._device, self._cuda = device, device.type == "cuda"
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []
        self.mark(OTHER)

    def mark(self, ended: str) -> None:
        if self._cuda:
            stamp: float | torch.cuda.Event = torch.cuda.Event(enable_timing=True)
            stamp.record(torch.cuda.current_stream(self._device))
        else:
            stamp = time.perf_counter()
        self._marks.append((ended, stamp))

    def seconds(self) -> Counter[str]:
        """Seconds by part. On CUDA the device must have reached the last mark."""
        spent: Counter[str] = Counter()
        for (_, start), (part, end) in zip(self._marks, self._marks[1:], strict=False):
            spent[part] += start.elapsed_time(end) / 1000 if self._cuda else end - start
        return spent


_timeline: ContextVar[_Timeline | None] = ContextVar("hacpo_timeline", default=None)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Charges what is inside to the part `name` of the phase that is going on. A decorator too; waits for no device."""
    timeline = _timeline.get()
    with record_function(name):
        if timeline is None or timeline.busy:
            yield
            return
        timeline.mark(OTHER)
        timeline.busy = True
        try:
            yield
        finally:
            timeline.busy = False
            timeline.mark(name)
