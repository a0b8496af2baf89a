"""A long run needs no more memory, files and processes at its end than at its beginning."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import runs
import torch

from hacpo_fast.policy.length_batches import LengthBatches
from hacpo_fast.trainer import Trainer


def measure():
    """What a process holds: resident bytes and counts of everything that can leak."""
    LengthBatches.plan.cache_clear()  # it holds the plans of the last few batches, whose tables vary in number
    gc.collect()
    everything = gc.get_objects()
    return {
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "objects": len(everything),
        "tensors": sum(issubclass(type(one), torch.Tensor) for one in everything),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def test_nothing_grows(request, tmp_path, monkeypatch):
    steps = request.config.getoption("--soak")
    models = runs.write_models(tmp_path / "models")
    config = runs.settings(
        {name: models[name] for name in ("ada", "bea")}, tmp_path,
        run__steps=steps, run__save_every=10, validation__every=10, validation__problems=3, training__lr=1e-5,
    )  # fmt: skip
    seen, right = [], Trainer.step

    def step(self, number):
        # Caches are filled after a quarter; looking at every object takes longer than a step.
        if number > steps // 4 and number % max(1, steps // 16) == 0:
            seen.append(measure())
        return right(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    runs.train(config, tmp_path / "run")
    early, late = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    report = {name: (max(one[name] for one in early), max(one[name] for one in late)) for name in seen[0]}
    print(f"{steps} steps, largest in the first and in the second half after warm-up: {report}")
    for name in ("tensors", "files", "threads", "children"):
        assert report[name][1] <= report[name][0], report
    apart = 3 * steps // 8  # steps from the middle of one half to that of the other
    assert np.median([o["objects"] for o in late]) - np.median([o["objects"] for o in early]) < 5 * apart, report
    assert report["resident"][1] - report["resident"][0] < max(4 << 20, 10_000 * apart), report


def test_what_grows_is_seen():
    """The measure itself: a leak of each kind shows."""
    before = measure()
    kept = [torch.zeros(1), open(os.devnull), [[] for _ in range(10_000)]]
    after = measure()
    assert after["tensors"] == before["tensors"] + 1 and after["files"] == before["files"] + 1
    assert after["objects"] > before["objects"] + 5_000  # others come and go
    kept[1].close()
