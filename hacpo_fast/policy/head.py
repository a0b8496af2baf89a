"""The last step of a language model, from hidden states to logits, as arguments of a fused projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from hacpo_fast.errors import UserError


@dataclass(frozen=True)
class Head:
    """logits = cap(scale * (hidden @ weight.T + bias)), cap(x) = softcap * tanh(x / softcap) or nothing.

    Attributes:
        weight: [V, H], the parameter itself: with tied embeddings the embedding matrix.
        bias: [V] or None.
        softcap: as Gemma 2 has it, or None.
        scale: constant factor, as in Granite (1 / logits_scaling) and Cohere (logit_scale); 1 otherwise.
    """

    weight: Tensor
    bias: Tensor | None
    softcap: float | None
    scale: float

    @classmethod
    def of(cls, model: PreTrainedModel) -> Head:
        """The head of `model`.

        Raises:
            UserError: the model does not end in a linear projection, or scales and caps its logits at once.
        """
        projection = model.get_output_embeddings()
        if not isinstance(projection, nn.Linear):
            raise UserError(f"{type(model).__name__} does not end in a linear projection to the vocabulary")
        config = model.config.get_text_config()
        scale = _number(config, "logit_scale", 1.0) / _number(config, "logits_scaling", 1.0)
        softcap = _number(config, "final_logit_softcapping", None)
        if softcap is not None and scale != 1:
            raise UserError(f"{type(model).__name__} scales and caps its logits, which is not supported")
        return cls(projection.weight, projection.bias, softcap, scale)

    def arguments(self, temperature: float | Tensor = 1.0) -> dict[str, Any]:
        """Keyword arguments of the fused operators: weight, bias, temperature and logit_softcap.

        The scale goes into the temperature: exact, and no pass over hidden states or weights.
        """
        return {
            "weight": self.weight,
            "bias": self.bias,
            "temperature": temperature / self.scale,
            "logit_softcap": self.softcap,
        }


def _number(config: Any, name: str, default: float | None) -> float | None:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) else default
