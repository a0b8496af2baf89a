"""hacpo_kernels as a package that others install: what it may import, and what its folder must not be taken for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hacpo_kernels

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kernels" / "hacpo_kernels"


def python(code: str, *paths: Path) -> list[str]:
    """The lines that `code` prints, run at the root of the repository, which is then first on the path."""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        env={"PYTHONPATH": ":".join(map(str, paths)), "PATH": "", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_needs_torch_and_in_one_folder_triton():
    """In particular it knows nothing of the trainer."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module)
            roots = {name.split(".")[0] for name in names}
            allowed = {"torch", "triton"} if path.parent == PACKAGE / "triton" else {"torch"}
            assert roots <= allowed | sys.stdlib_module_names, path


def test_works_where_triton_is_not_installed():
    """Neither importing nor running on CPU looks at it."""
    code = """
import sys
sys.modules["triton"] = None  # makes `import triton` fail
import torch
from hacpo_kernels import linear_logprob
print(linear_logprob(torch.randn(3, 4), torch.randn(5, 4), torch.zeros(3, dtype=torch.long)).shape)
print([name for name in sys.modules if name.startswith("hacpo_kernels.triton")])
"""
    assert python(code, PACKAGE.parent) == ["torch.Size([3])", "[]"]


def test_public_names():
    assert {"linear_logprob", "linear_policy_loss", "policy_loss", "PolicyLossStats", "__version__"} == set(
        hacpo_kernels.__all__
    )
    assert all(hasattr(hacpo_kernels, name) for name in hacpo_kernels.__all__)


# The folder kernels/ must not be taken for the package named kernels that transformers and vLLM look for. What the two
# do to find it: ask for its version, then import it.
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
def the_other_kernels(tmp_path):
    """A stand-in for the other package, installed as pip would do it."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/__init__.py").write_text("def get_kernel(*args, **kwargs): ...\nLayerRepository = None\n")
    (tmp_path / "kernels-0.0.1.dist-info").mkdir()
    (tmp_path / "kernels-0.0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.0.1\n")
    return tmp_path


def test_where_the_other_package_is_missing_it_stays_missing():
    assert python(LOOK_UP, PACKAGE.parent) == ["False", "not installed"]


def test_where_the_other_package_is_installed_it_is_the_one_found(the_other_kernels):
    """A file kernels/__init__.py in the repository would come first."""
    code = "import kernels, importlib.metadata; print(kernels.__file__); print(importlib.metadata.version('kernels'))"
    assert python(code, the_other_kernels) == [str(the_other_kernels / "kernels" / "__init__.py"), "0.0.1"]
