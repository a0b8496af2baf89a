"""Profiles of chosen steps: a chrome trace, and its top operators as text.

The trace (chrome://tracing or https://ui.perfetto.dev open it) has a range for every phase, named by the phase and the
agent ("learn alice"), and within it one for every part ("forward"). A profiled step is slower than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

ROWS = 40  # of the table


@contextmanager
def profiled(folder: Path, step: int, device: torch.device) -> Iterator[None]:
    """Writes step-N.json.gz (the trace) and step-N.txt (operators by their own time) of what is inside to `folder`."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as profiler:
        yield
    folder.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"step-{step}.json.gz"))
    by = "self_device_time_total" if cuda else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=60)
    (folder / f"step-{step}.txt").write_text(table)
