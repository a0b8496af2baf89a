"""environment.json: on what a run was computed, once for every process that worked on it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENVIRONMENT_FILE = "environment.json"
PACKAGES = (
    "hacpo_fast",
    "torch",
    "transformers",
    "triton",
    "vllm",
    "flash-attn",
    "numpy",
    "reasoning-gym",
    "math-verify",
)


def note_environment(folder: Path, steps_done: int, device: Any, engine: str) -> None:
    """Adds this process to `folder`/environment.json, as the one that goes on after `steps_done` steps.

    A resumed run may go on elsewhere, so the file holds a list. `device` (torch.device) is what the run computes on,
    `engine` what samples its responses.
    """
    path = folder / ENVIRONMENT_FILE
    starts = [*read_environment(folder), {"after_step": steps_done, **_describe(device), "engine": engine}]
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(starts, indent=1) + "\n")
    unfinished.rename(path)


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """What `note_environment` wrote, the first process first; empty where there is none that can be read."""
    try:
        starts = json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []


def _describe(device: Any) -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": sys.orig_argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "device": gpu.name if gpu else str(device),
        "device_memory_gb": round(gpu.total_memory / 2**30, 1) if gpu else None,
        "cuda": torch.version.cuda if gpu else None,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of this code, with "+" where files differ from it; None where it does not run from a git checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
