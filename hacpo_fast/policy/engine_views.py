"""Where each parameter of a policy lies inside the tensors of an inference engine.

Engines fuse what a Hugging Face model keeps apart: queries, keys and values are rows of one matrix, so are the two
halves of a gated MLP, and the vocabulary is padded. All of these are views: a parameter can live there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class UnknownLayout(Exception):
    """The engine's tensors cannot be understood as views; the message says why."""


def engine_views(model: PreTrainedModel, engine: nn.Module) -> dict[str, Tensor]:
    """A view into the engine's tensors for every parameter of `model`, with the parameter's name and shape.

    Every engine tensor is covered exactly, but for rows that pad the vocabulary. Names decide, and the engine's
    `packed_modules_mapping`; whether values lie where they belong is for the caller to compare.

    Raises:
        UnknownLayout: a tensor on either side is without counterpart or of another shape.
    """
    own, theirs = dict(model.named_parameters()), dict(engine.named_parameters())
    fused = {part: (whole, parts) for whole, parts in _packed(engine).items() for part in parts}
    vocabulary = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    views: dict[str, Tensor] = {}
    covered = dict.fromkeys(theirs, 0)
    for name, parameter in own.items():
        path, _, kind = name.rpartition(".")
        parent, _, leaf = path.rpartition(".")
        target, start = name, 0
        if name not in theirs and leaf in fused:
            whole, parts = fused[leaf]
            target = f"{parent}.{whole}.{kind}"
            before = [own.get(f"{parent}.{part}.{kind}") for part in parts[: parts.index(leaf)]]
            start = sum(len(part) for part in before if part is not None)
        if target not in theirs:
            raise UnknownLayout(f"the engine has no {target}")
        view = theirs[target].data[start : start + len(parameter)]
        if view.shape != parameter.shape:
            raise UnknownLayout(f"{target} of the engine is {tuple(theirs[target].shape)}, no room for {name}")
        views[name] = view
        covered[target] += len(view) if id(parameter) not in vocabulary else len(theirs[target])
    for name, rows in covered.items():
        if rows != len(theirs[name]):
            raise UnknownLayout(f"{rows} of {len(theirs[name])} rows of the engine's {name} are the policy's")
    return views


def differing(model: PreTrainedModel, views: dict[str, Tensor]) -> list[str]:
    """Names of parameters whose view holds other values."""
    return [
        name
        for name, parameter in model.named_parameters()
        if not torch.equal(parameter.detach().to(views[name].dtype), views[name])
    ]


def _packed(engine: nn.Module) -> dict[str, list[str]]:
    packed: dict[str, list[str]] = {}
    for module in (engine, *engine.children()):
        packed |= getattr(module, "packed_modules_mapping", None) or {}
    return packed
