"""The folder kernels/ must not be taken for the package named kernels that transformers and vLLM look for."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What the two libraries do to find it: ask for its version, then import it.
LOOK_UP = """
import importlib.metadata
from transformers.utils.import_utils import is_kernels_available
print(is_kernels_available())
try:
    print(importlib.metadata.version("kernels"))
except importlib.metadata.PackageNotFoundError:
    print("not installed")
import transformers.integrations.hub_kernels, hacpo_kernels
from transformers import AutoModelForCausalLM, LlamaForCausalLM
"""


@pytest.fixture
def installed(tmp_path):
    """A stand-in for the real package, installed as pip would do it."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/__init__.py").write_text("def get_kernel(*args, **kwargs): ...\nLayerRepository = None\n")
    (tmp_path / "kernels-0.0.1.dist-info").mkdir()
    (tmp_path / "kernels-0.0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.0.1\n")
    return tmp_path


def python(code, *paths):
    """Runs `code` from the root of the repository, which is then first on the path."""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        env={"PYTHONPATH": ":".join(map(str, paths)), "PATH": "", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\n")


def test_where_the_package_is_missing_it_stays_missing():
    available, version, *_ = python(LOOK_UP)
    assert (available, version) == ("False", "not installed")


def test_where_the_package_is_installed_it_is_the_one_found(installed):
    place, *_ = python("import kernels; print(kernels.__file__)", installed)
    assert place == str(installed / "kernels" / "__init__.py")
    version = python("import importlib.metadata as m; print(m.version('kernels'))", installed)[0]
    assert version == "0.0.1"
