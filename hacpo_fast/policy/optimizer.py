"""AdamW that loses nothing to 16-bit weights.

At a learning rate of 1e-6 most updates are smaller than half the distance between neighbouring bfloat16 numbers, so a
16-bit weight would never move. Parameters of less than 32 bits therefore have a float32 master, which is updated and
rounded into the parameter, and their gradients are summed over micro-batches in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from hacpo_fast.errors import UserError
from hacpo_fast.policy.optimizer_state import MASTER, MOMENTS, Offloaded, Resident, State

STEP = "step"


@dataclass(frozen=True)
class Update:
    """What an optimiser step did.

    Attributes:
        norm: global norm of the gradient before clipping.
        status: "applied"; "no_gradient": every gradient was missing or 0, so nothing was to be learnt; "non_finite":
            the gradient was infinite or NaN. In the last two cases weights, masters and moments are untouched.
    """

    norm: float
    status: Literal["applied", "no_gradient", "non_finite"]

    @property
    def applied(self) -> bool:
        return self.status == "applied"


class MasterAdamW:
    """AdamW over a model's trainable parameters, with float32 masters for those that have fewer bits.

    One update is: any number of backward passes, `clip_and_norm`, `step`. Gradients are summed from one step to the
    next; step clears them, also when it leaves the weights alone.

    Parameters change in place, whatever storage they have at that time: they may be views of an inference engine's
    tensors, and may become so after the optimiser was made.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        state: Callable[[Mapping[str, nn.Parameter], Mapping[str, nn.Parameter]], State] = Resident,
    ) -> None:
        """Take a model's `named_parameters()`: tied ones once (under their first name), frozen ones not at all.

        Vectors (norms, biases) are not decayed: they set the scale and offset of activations, where 0 is no simpler
        than any other value, and they are too few to overfit. state: where masters and moments live, `Resident` or
        `Offloaded`; the result is the same.

        Raises:
            ValueError: no parameter is trainable.
        """
        self._parameters: dict[str, nn.Parameter] = {}
        for name, parameter in parameters:
            if parameter.requires_grad and not any(parameter is known for known in self._parameters.values()):
                self._parameters[name] = parameter
        if not self._parameters:
            raise ValueError("no parameter is trainable")
        self._rounded = {name: p for name, p in self._parameters.items() if p.dtype.itemsize < 4}
        self._sums: dict[str, Tensor] = {}  # float32 gradients of rounded parameters
        for name, parameter in self._rounded.items():
            parameter.register_post_accumulate_grad_hook(_sum_into(self._sums, name))
        self._state = state(self._parameters, self._rounded)
        self._steps: dict[str, Tensor] = {}  # updates of each parameter, beside it: the fused kernel reads them there
        self._weight_decay = weight_decay
        # One fused kernel over all tensors where there is one; elsewhere (foreach=None) torch decides.
        self.fused = all(parameter.device.type in ("cpu", "cuda") for parameter in self._parameters.values())
        self._adamw = partial(
            adamw, beta1=betas[0], beta2=betas[1], eps=eps, fused=self.fused or None, amsgrad=False, maximize=False
        )
        self._norm: Tensor | None = None

    @property
    def rounded(self) -> bool:
        """Whether any parameter is rounded from a float32 master."""
        return bool(self._rounded)

    @property
    def offloaded(self) -> bool:
        return isinstance(self._state, Offloaded)

    def gradients(self) -> dict[str, Tensor]:
        """The float32 gradients summed since the last step, by parameter; those that have none are missing."""
        found = {name: self._sums.get(name, parameter.grad) for name, parameter in self._parameters.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    @torch.no_grad()
    def clip_and_norm(self, max_norm: float) -> Tensor:
        """Scale the gradients down to a global norm of at most `max_norm`; returns the norm before, float32 []."""
        gradients = [*self.gradients().values()]
        self._norm = nn.utils.get_total_norm(gradients)
        if gradients:
            # No synchronisation with the device here: multiplying by 1 costs less than waiting to find out.
            torch._foreach_mul_(gradients, (max_norm / (self._norm + 1e-6)).clamp(max=1.0))
        return self._norm

    @torch.no_grad()
    def step(self, lr: float) -> Update:
        """Update the weights with the gradients summed since the last step, and clear these.

        A gradient that is 0 everywhere means that no response had anything to teach. AdamW would still move the
        weights, by momentum and decay; so the update is left out. (A norm below 1e-22 counts as 0.)
        """
        norm = nn.utils.get_total_norm([*self.gradients().values()]) if self._norm is None else self._norm
        size = norm.item()
        update = Update(size, "no_gradient" if size == 0 else "applied" if size < float("inf") else "non_finite")
        if update.applied:
            self._update(lr)
        self.zero_grad()
        return update

    def discard(self) -> Update:
        """In place of `step`: clears the gradients and leaves the weights alone, because the loss is not finite."""
        norm = nn.utils.get_total_norm([*self.gradients().values()]) if self._norm is None else self._norm
        self.zero_grad()
        return Update(norm.item(), "non_finite")

    @torch.no_grad()
    def weights_are_finite(self) -> bool:
        """Whether no weight is NaN or infinite. Reads all of them once, a small part of what an update reads.

        By sums, which are the cheapest to take: finite weights would have to be as large as 1e30 for theirs not to be.
        """
        return bool(torch.stack([weight.sum() for weight in self._parameters.values()]).isfinite().all())

    def zero_grad(self) -> None:
        """Forget the gradients summed so far and free their memory."""
        for parameter in self._parameters.values():
            parameter.grad = None
        self._sums.clear()
        self._norm = None

    def state_dict(self) -> dict[str, Tensor]:
        """Masters (of 16-bit parameters only) and moments, flat, so that safetensors can hold them.

        Keys are "master.NAME", "exp_avg.NAME", "exp_avg_sq.NAME" and "step.NAME"; a parameter has moments from its
        first update on. The tensors are the live ones, not copies, but for large ones of `Offloaded`.
        """
        state = {}
        for name in self._parameters:
            begun = name in self._steps
            tensors = self._state.tensors(name) | ({STEP: self._steps[name]} if begun else {})
            state |= {f"{kind}.{name}": tensor for kind, tensor in tensors.items() if begun or kind == MASTER}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken. 16-bit weights are set from their masters.

        Raises:
            UserError: the state is of other parameters, dtypes or shapes; then nothing has changed.
        """
        expected = {f"{MASTER}.{name}": parameter.shape for name, parameter in self._rounded.items()}
        begun = [name for name in self._parameters if f"{STEP}.{name}" in state]
        for name in begun:
            shape = self._parameters[name].shape
            expected |= {f"{STEP}.{name}": torch.Size()} | {f"{kind}.{name}": shape for kind in MOMENTS}
        if {key: tensor.shape for key, tensor in state.items()} != expected:
            raise UserError("the saved optimiser state belongs to other parameters, or to weights of another dtype")
        self._state.clear_moments()
        self._steps = {name: self._step_of(name).copy_(state[f"{STEP}.{name}"]) for name in begun}
        for key, tensor in state.items():
            kind, name = key.split(".", 1)
            if kind != STEP:
                self._state.load(name, kind, tensor)
            if kind == MASTER:
                self._parameters[name].copy_(tensor)

    def _update(self, lr: float) -> None:
        """AdamW on all parameters that have a gradient, and the masters rounded into theirs."""
        gradients = self.gradients()
        for name in gradients:
            if name not in self._steps:
                self._steps[name] = self._step_of(name)
        for pieces in self._state.pieces([*gradients]):
            matrices = [piece for piece in pieces if self._parameters[piece.name].ndim > 1]
            vectors = [piece for piece in pieces if self._parameters[piece.name].ndim <= 1]
            for group, decay in ((matrices, self._weight_decay), (vectors, 0.0)):
                self._adamw(
                    [piece.master for piece in group],
                    [piece.of(gradients[piece.name]) for piece in group],
                    [piece.exp_avg for piece in group],
                    [piece.exp_avg_sq for piece in group],
                    [],
                    [self._steps[piece.name] if piece.last else self._steps[piece.name].clone() for piece in group],
                    lr=lr,
                    weight_decay=decay,
                )
            rounded = [piece for piece in pieces if piece.name in self._rounded]
            if rounded:
                weights = [piece.of(self._parameters[piece.name].data) for piece in rounded]
                torch._foreach_copy_(weights, [piece.master for piece in rounded])

    def _step_of(self, name: str) -> Tensor:
        device = self._parameters[name].device if self.fused else "cpu"
        return torch.zeros((), dtype=torch.float32, device=device)


def _sum_into(sums: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    """A hook that moves a parameter's gradient, as soon as a backward pass is done with it, into its float32 sum."""

    def hook(parameter: Tensor) -> None:
        if parameter.grad is None:
            raise RuntimeError("two MasterAdamW hold the same 16-bit parameter, and only one can have its gradient")
        if name in sums:
            sums[name] += parameter.grad
        else:
            sums[name] = parameter.grad.float()
        parameter.grad = None  # the 16-bit copy is never needed again, not even until the end of the backward pass

    return hook
