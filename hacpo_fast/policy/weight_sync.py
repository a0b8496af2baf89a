"""Three ways in which an engine gets a policy's present weights, best first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class WeightSync(Protocol):
    def __call__(self) -> None:
        """Puts the policy's present weights into the engine."""

    def release(self) -> None:
        """The policy has weights of its own again."""


class SharedWeights:
    """The policy's parameters are the engine's tensors: one copy exists, and an optimiser step is in it at once."""

    def __init__(self, model: PreTrainedModel, views: dict[str, Tensor]):
        self.model = model
        for name, parameter in model.named_parameters():
            views[name].copy_(parameter.detach())
            parameter.data = views[name]
        self.pointers = {name: view.data_ptr() for name, view in views.items()}

    def __call__(self) -> None:
        """Nothing to move; raises RuntimeError if something gave a parameter other storage."""
        moved = [name for name, p in self.model.named_parameters() if p.data_ptr() != self.pointers[name]]
        if moved:
            raise RuntimeError(f"{len(moved)} parameters, {moved[0]} first, no longer are the engine's tensors")

    def release(self) -> None:
        for parameter in self.model.parameters():
            parameter.data = parameter.detach().clone()


class CopiedWeights:
    """One fused copy into the engine's tensors; the engine may have another dtype."""

    def __init__(self, model: PreTrainedModel, views: dict[str, Tensor]):
        self.model, self.views = model, views

    @torch.no_grad()
    def __call__(self) -> None:
        own = dict(self.model.named_parameters())
        torch._foreach_copy_([self.views[name] for name in own], [parameter.detach() for parameter in own.values()])

    def release(self) -> None:
        """Nothing is shared."""


class ReloadedWeights:
    """Through the engine's own loading, for layouts that are no plain views (quantised, packed, expert weights)."""

    def __init__(
        self, model: PreTrainedModel, engine: nn.Module, reload: Callable[[Iterable[tuple[str, Tensor]]], None]
    ):
        self.model, self.engine, self.reload = model, engine, reload

    def __call__(self) -> None:
        self.reload(checkpoint_weights(self.model, self.engine))

    def release(self) -> None:
        """Nothing is shared."""


def checkpoint_weights(model: PreTrainedModel, engine: nn.Module) -> list[tuple[str, Tensor]]:
    """Names and weights as a checkpoint of `engine` has them: tied ones under each name that the engine knows.

    With one name only, an engine that keeps a tied output head apart would silently go on with the old one.
    """
    own = {name for name, _ in model.named_parameters()}
    modules = {name for name, _ in engine.named_modules(remove_duplicate=False)}
    return [
        (name, parameter.detach())
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name in own or name.rpartition(".")[0] in modules
    ]
