"""The operators' arguments in groups: what travels together from a public function to a kernel is one tuple.

The schema of a custom operator knows tensors, numbers and lists of numbers. `flat` spells a group out for it, and
`from_flat` puts it together again inside.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .checks import (
    check_cu_seqlens_values,
    check_floating,
    check_integer,
    check_positive,
    check_positive_values,
    check_target_values,
    check_tensor,
)
from .dispatch import compute_dtype
from .rows import take

LEVELS = ("sequence", "token")


class Head(NamedTuple):
    """A vocabulary projection and the tokens whose log-probabilities are asked for, as in `linear_logprob`."""

    hidden: Tensor  # [T, H]
    weight: Tensor  # [V, H]
    targets: Tensor  # [T]
    bias: Tensor | None  # [V]
    temperature: float | Tensor  # a tensor is [T]
    softcap: float | None

    @property
    def dtype(self) -> torch.dtype:
        """That of logits and sums."""
        return compute_dtype(self.hidden, self.weight)

    def take(self, rows: slice | Tensor) -> Head:
        """The same projection of some of the tokens."""
        per_token = isinstance(self.temperature, Tensor)
        return self._replace(
            hidden=take(self.hidden, rows),
            targets=take(self.targets, rows),
            temperature=take(self.temperature, rows) if per_token else self.temperature,
        )

    def check(self) -> None:
        """Shapes, dtypes, devices and numbers. Raises TypeError or ValueError."""
        check_tensor("hidden", self.hidden, (None, None))
        check_floating("hidden", self.hidden)
        (tokens, width), device = self.hidden.shape, self.hidden.device
        check_tensor("weight", self.weight, (None, width), device)
        check_floating("weight", self.weight)
        if self.weight.shape[0] == 0:
            raise ValueError("weight has no rows: the vocabulary is empty")
        check_tensor("targets", self.targets, (tokens,), device)
        check_integer("targets", self.targets)
        if self.bias is not None:
            check_tensor("bias", self.bias, (self.weight.shape[0],), device)
            check_floating("bias", self.bias)
        if isinstance(self.temperature, Tensor):
            check_tensor("temperature", self.temperature, (tokens,), device)
            check_floating("temperature", self.temperature)
            if self.temperature.requires_grad:
                raise ValueError("temperature requires a gradient, but the operators are not differentiable in it")
        else:
            check_positive("temperature", self.temperature)
        if self.softcap is not None:
            check_positive("logit_softcap", self.softcap)

    def check_values(self) -> None:
        """Targets and temperatures themselves, on CPU. Raises IndexError or ValueError."""
        check_target_values(self.targets, self.weight.shape[0])
        if isinstance(self.temperature, Tensor):
            check_positive_values("temperature", self.temperature)

    def flat(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float, Tensor | None, float | None]:
        """The temperature comes twice: as a number, 1 where there is one per token, and as a tensor, else None."""
        per_token = isinstance(self.temperature, Tensor)
        return (
            *self[:4],
            1.0 if per_token else float(self.temperature),
            self.temperature if per_token else None,
            None if self.softcap is None else float(self.softcap),
        )

    @classmethod
    def from_flat(
        cls,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        temperature: float,
        token_temperature: Tensor | None,
        softcap: float | None,
    ) -> Head:
        if token_temperature is not None:
            token_temperature = token_temperature.to(compute_dtype(hidden, weight))
        return cls(
            hidden, weight, targets, bias, temperature if token_temperature is None else token_temperature, softcap
        )


class Needs(NamedTuple):
    """Which gradients of a projection are wanted."""

    hidden: bool
    weight: bool
    bias: bool

    def of(self, gradients: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The wanted ones, None for the others."""
        return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, self, strict=True))


class RowGradients(NamedTuple):
    """What the gradient of a token's logits is made of: upstream gradients, and what forward found. [T] each."""

    grad_logprob: Tensor
    grad_entropy: Tensor | None
    logsumexp: Tensor
    entropy: Tensor | None  # there with grad_entropy

    def take(self, rows: slice | Tensor) -> RowGradients:
        return RowGradients(*(take(field, rows) for field in self))


class Responses(NamedTuple):
    """N packed responses as the policy loss knows them, beside their tokens' log-probabilities; as in `policy_loss`."""

    cu_seqlens: Tensor  # [N + 1]
    source_mean_logprobs: Tensor  # [N], as are the next three
    advantages: Tensor
    is_own: Tensor
    capability_ratio: Tensor
    source_token_logprobs: Tensor | None  # [T]; after `at_level`, there at level "token" only

    def take(self, sequences: slice, tokens: slice) -> Responses:
        """Some of the responses, whose tokens are `tokens`."""
        return Responses(
            self.cu_seqlens[sequences.start : sequences.stop + 1] - tokens.start,
            *(take(field, sequences) for field in self[1:5]),
            take(self.source_token_logprobs, tokens),
        )

    def check(self, tokens: int, device: torch.device, *, host_boundaries: bool = False) -> None:
        """Shapes, dtypes and devices; host_boundaries: cu_seqlens may be on the CPU. Raises TypeError or ValueError."""
        check_tensor("cu_seqlens", self.cu_seqlens, (None,))
        if not (host_boundaries and self.cu_seqlens.device.type == "cpu"):
            check_tensor("cu_seqlens", self.cu_seqlens, (None,), device)
        check_integer("cu_seqlens", self.cu_seqlens)
        if self.cu_seqlens.shape[0] == 0:
            raise ValueError("cu_seqlens is empty; without sequences it is [0]")
        sequences = self.cu_seqlens.shape[0] - 1
        for name in ("source_mean_logprobs", "advantages", "capability_ratio"):
            check_tensor(name, getattr(self, name), (sequences,), device)
            check_floating(name, getattr(self, name))
        check_tensor("is_own", self.is_own, (sequences,), device)
        if self.is_own.dtype != torch.bool:
            raise TypeError(f"is_own must have dtype torch.bool, got {self.is_own.dtype}")
        if self.source_token_logprobs is not None:
            check_tensor("source_token_logprobs", self.source_token_logprobs, (tokens,), device)
            check_floating("source_token_logprobs", self.source_token_logprobs)

    def check_values(self, tokens: int) -> None:
        """Boundaries, and that all responses are own where that matters, on CPU. Raises ValueError."""
        check_cu_seqlens_values(self.cu_seqlens, tokens)
        if self.source_token_logprobs is not None and self.is_own.device.type == "cpu" and not self.is_own.all():
            raise ValueError('level="token" is defined for own responses only, but is_own has False in it')

    def at_level(self, level: str) -> Responses:
        """With source_token_logprobs at level "token" and without at level "sequence". Raises ValueError."""
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(map(repr, LEVELS))}, got {level!r}")
        if level == "sequence":
            return self._replace(source_token_logprobs=None)
        if self.source_token_logprobs is None:
            raise ValueError('level="token" needs source_token_logprobs')
        return self


class Objective(NamedTuple):
    """The numbers of the policy loss, as in `policy_loss`."""

    own_clip_low: float
    own_clip_high: float
    cross_clip_lower: float
    cross_clip_upper: float
    alpha: float
    log_ratio_clamp: float
    denominator: float | None  # None, the number of responses, is resolved in `from_flat`

    def check(self) -> None:
        """Raises ValueError."""
        for name in ("own_clip_low", "own_clip_high", "alpha"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        lower, upper = self.cross_clip_lower, self.cross_clip_upper
        if not 0 <= lower <= upper:
            raise ValueError(f"0 <= cross_clip_lower <= cross_clip_upper must hold, got {lower} and {upper}")
        check_positive("log_ratio_clamp", self.log_ratio_clamp, finite=False)
        if self.denominator is not None:
            check_positive("denominator", self.denominator)

    def flat(self) -> tuple[list[float], float | None]:
        return [float(number) for number in self[:6]], None if self.denominator is None else float(self.denominator)

    @classmethod
    def from_flat(cls, numbers: list[float], denominator: float | None, sequences: int) -> Objective:
        return cls(*numbers, float(max(sequences, 1)) if denominator is None else denominator)
