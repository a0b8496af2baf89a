"""hacpo_kernels as a package that others install: what it may import and what must not exist."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import hacpo_kernels

KERNELS = Path(__file__).parents[2] / "kernels"


def test_the_folder_is_not_a_package():
    """`kernels/__init__.py` would shadow another well-known package of that name for everything run from here."""
    assert (KERNELS / "hacpo_kernels" / "__init__.py").exists()
    assert not (KERNELS / "__init__.py").exists()


def test_needs_torch_and_in_one_folder_triton():
    """In particular it knows nothing of the trainer."""
    package = KERNELS / "hacpo_kernels"
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module)
            roots = {name.split(".")[0] for name in names}
            allowed = {"torch", "triton"} if path.parent == package / "triton" else {"torch"}
            assert roots <= allowed | sys.stdlib_module_names, path


def test_works_where_triton_is_not_installed():
    """Neither importing nor running on CPU looks at it."""
    code = """
import sys
sys.modules["triton"] = None  # makes `import triton` fail
import torch
from hacpo_kernels import linear_logprob, linear_policy_loss, policy_loss
linear_logprob(torch.randn(3, 4), torch.randn(5, 4), torch.zeros(3, dtype=torch.long))
assert not any(name.startswith("hacpo_kernels.triton") for name in sys.modules)
"""
    environment = {"PYTHONPATH": str(KERNELS), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_public_names():
    assert all(hasattr(hacpo_kernels, name) for name in hacpo_kernels.__all__)
    assert {"linear_logprob", "linear_policy_loss", "policy_loss", "PolicyLossStats", "__version__"} <= set(
        hacpo_kernels.__all__
    )
