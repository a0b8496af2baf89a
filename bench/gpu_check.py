"""Everything that needs a GPU, in under eight minutes: tests marked `gpu`, then the benchmarks; one JSON file.

Needs torch, triton, transformers, numba, pytest and pytest-benchmark, no network, and nothing installed from this
repository. Run it with `make gpu-check`, or `python bench/gpu_check.py [--out FILE] [--seconds LIMIT]` anywhere.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPU_ONLY = ("bench_packing.py", "bench_step.py")  # what they measure is the same with a GPU
VERSIONS = ("torch", "triton", "transformers", "numba", "liger-kernel", "cut-cross-entropy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "gpu_check.json", help="where the results go")
    parser.add_argument("--seconds", type=float, default=460, help="limit for all of it")
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("gpu-check: no GPU that torch can use; `make test` runs everything that needs none", file=sys.stderr)
        return 2
    deadline = time.monotonic() + arguments.seconds
    results = {
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "cuda": torch.version.cuda,
        "versions": {name: _version(name) for name in VERSIONS},
    }
    with tempfile.TemporaryDirectory() as folder:
        report, timings = Path(folder, "tests.xml"), Path(folder, "bench.json")
        # Benchmarks get a third of the time at least.
        files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
        limit = (deadline - time.monotonic()) * 2 / 3
        tests_passed = _pytest(["-m", "gpu", *files, f"--junit-xml={report}"], limit)
        results["tests"] = _tests(report)
        benchmarks = [str(path) for path in sorted((ROOT / "bench").glob("bench_*.py")) if path.name not in CPU_ONLY]
        flags = [f"--benchmark-json={timings}", "--benchmark-columns=min,median", "-o", "python_files=bench_*.py"]
        benchmarks_passed = _pytest([*benchmarks, *flags], deadline - time.monotonic())
        results["benchmarks"] = _benchmarks(timings)
    results["passed"] = tests_passed and benchmarks_passed
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"gpu-check: {'passed' if results['passed'] else 'FAILED'}; results in {arguments.out}")
    return 0 if results["passed"] else 1


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pytest(arguments: list[str], seconds: float) -> bool:
    """Whether pytest passed in time."""
    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=max(seconds, 1)).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"gpu-check: stopped after {seconds:.0f} s", file=sys.stderr)
        return False


def _tests(report: Path) -> list[dict]:
    """Name, seconds and outcome of each test; nothing if pytest was stopped before it wrote its report."""
    if not report.exists():
        return []
    outcomes = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        outcomes.append(
            {
                "name": f"{case.get('classname')}::{case.get('name')}",
                "seconds": float(case.get("time", 0)),
                "passed": problem is None,
            }
            | ({} if problem is None else {"message": (problem.get("message") or "")[:2000]})
        )
    return outcomes


def _benchmarks(timings: Path) -> list[dict]:
    """Group, name, milliseconds and peak memory of each measurement."""
    if not timings.exists() or not timings.stat().st_size:
        return []
    return [
        {
            "group": entry["group"],
            "name": (entry["params"] or {}).get("name", entry["name"]),
            "median_ms": entry["stats"]["median"] * 1e3,
            "min_ms": entry["stats"]["min"] * 1e3,
            **entry["extra_info"],
        }
        for entry in json.loads(timings.read_text())["benchmarks"]
    ]


if __name__ == "__main__":
    sys.exit(main())
