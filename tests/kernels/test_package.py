"""hacpo_kernels as a package that others install: what it may import and what must not exist."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import hacpo_kernels

KERNELS = Path(__file__).parents[2] / "kernels"


def test_the_folder_is_not_a_package():
    """`kernels/__init__.py` would shadow another well-known package of that name for everything run from here."""
    assert (KERNELS / "hacpo_kernels" / "__init__.py").exists()
    assert not (KERNELS / "__init__.py").exists()


def test_needs_torch_only():
    """In particular it knows nothing of the trainer."""
    for path in (KERNELS / "hacpo_kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module)
            roots = {name.split(".")[0] for name in names}
            assert roots <= {"torch", *sys.stdlib_module_names}, path


def test_public_names():
    assert all(hasattr(hacpo_kernels, name) for name in hacpo_kernels.__all__)
    assert {"linear_logprob", "policy_loss", "PolicyLossStats", "__version__"} <= set(hacpo_kernels.__all__)
