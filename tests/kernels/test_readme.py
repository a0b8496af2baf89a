"""kernels/README.md: its examples run, and what it says of arguments and requirements is so."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import pytest
import torch

import hacpo_kernels
from hacpo_kernels import PolicyLossStats

FOLDER = Path(__file__).parents[2] / "kernels"
README = (FOLDER / "README.md").read_text()
OPERATORS = ("linear_logprob", "policy_loss", "linear_policy_loss")


def parameters(operator):
    return inspect.signature(getattr(hacpo_kernels, operator)).parameters


def test_examples_run_one_after_the_other():
    torch.manual_seed(0)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert set(OPERATORS) <= {word for block in blocks for word in re.findall(r"\w+", block)}
    assert names["states"].shape == (9, 64) and names["cu_seqlens"].tolist() == [0, 4, 9]
    torch.testing.assert_close(names["old_logprobs"], names["token_logprobs"])
    torch.testing.assert_close(names["stats"].ratio, torch.tensor([0.0, -0.1]).exp())
    assert names["gspo"].item() == pytest.approx(0, abs=1e-6) and names["grpo"].item() == pytest.approx(0, abs=1e-6)
    assert names["loss"].item() == pytest.approx(-(1 - 0.9 * math.exp(-0.1) ** 2) / 2, abs=1e-5)
    assert torch.equal(names["hidden"].grad.any(2)[:, :-1], names["predicts"])  # nothing else has a part in it


@pytest.mark.parametrize("operator", OPERATORS)
def test_signatures(operator):
    written = re.search(rf"^`{operator}\((.*?)\)`", README, flags=re.DOTALL | re.MULTILINE)[1]
    written = dict(inspect.signature(eval(f"lambda {written}: None".replace("\n", " "))).parameters)
    if "settings" in written:
        del written["settings"]
        keywords = {
            name: value for name, value in parameters("policy_loss").items() if value.kind is value.KEYWORD_ONLY
        }
        written |= keywords
    actual = parameters(operator)
    assert {name: (value.kind, value.default) for name, value in written.items()} == {
        name: (value.kind, value.default) for name, value in actual.items()
    }


@pytest.mark.parametrize("operator", ["linear_logprob", "policy_loss"])
def test_tables_of_arguments(operator):
    section = README.split(f"\n## {operator}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    tensors = [name for name, value in parameters(operator).items() if "Tensor" in value.annotation]
    assert set(tensors) <= set(rows) <= parameters(operator).keys()
    if operator == "policy_loss":
        assert ", ".join(PolicyLossStats._fields) in section


def test_required_versions():
    asked = re.findall(r"\b(torch|triton) \((\d[\d.]*)\s+or newer", README)
    written = re.findall(r"\b(torch|triton)>=(\d[\d.]*)", (FOLDER / "pyproject.toml").read_text())
    assert sorted(asked) == sorted(written) and len(asked) == 2
