"""The inputs of a vocabulary projection as kernels take them, and what their launches share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..arguments import Head
from ..rows import take
from . import logits, table

LOG2_E = logits.LOG2_E.value
# Lanes and warps of a program that walks over one row of logits.
ROW_BLOCK, ROW_WARPS = 1024, 4


class Problem(NamedTuple):
    """The inputs as kernels take them, and the few facts that kernels are specialised for."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None
    row_scale: Tensor | None  # [T] float32, log2(e) / temperature; None where one number goes for all:
    scale: float
    softcap: float | None

    @classmethod
    def build(cls, head: Head) -> Problem:
        hidden, temperature = head.hidden, head.temperature
        if hidden.dtype != head.weight.dtype:
            hidden = hidden.float()  # products take factors of one dtype; the weight is converted slice by slice
        per_token = isinstance(temperature, Tensor)
        return cls(
            hidden,
            head.weight,
            head.targets.contiguous(),
            None if head.bias is None else head.bias.contiguous(),
            LOG2_E / temperature.float() if per_token else None,
            1.0 if per_token else LOG2_E / temperature,
            head.softcap,
        )

    @property
    def flags(self) -> dict[str, bool]:
        return {
            "BIAS": self.bias is not None,
            "ROW_SCALE": self.row_scale is not None,
            "SOFTCAP": self.softcap is not None,
        }

    @property
    def scales(self) -> tuple[float, float]:
        """scale and softcap of a launch; what a kernel does not read may be any number."""
        return self.scale, self.softcap or 1.0

    def weight_slice(self, columns: slice) -> Tensor:
        """Rows of the weight in the dtype of the hidden states."""
        return self.weight[columns].to(self.hidden.dtype)

    def take(self, rows: slice) -> Problem:
        """The same problem for some of the tokens."""
        hidden, targets, row_scale = (take(tensor, rows) for tensor in (self.hidden, self.targets, self.row_scale))
        return self._replace(hidden=hidden, targets=targets, row_scale=row_scale)


def kind(kernel: str, problem: Problem, entropy: bool) -> str:
    """A key of `table.TILES`."""
    return f"rich {kernel}" if entropy or problem.softcap is not None else kernel


def operands(problem: Problem, plan: table.Plan) -> tuple[object, object]:
    """hidden and weight as the fused kernels take them."""
    if not plan.tma:
        return problem.hidden, problem.weight
    tiles = plan.tiles
    return (
        TensorDescriptor.from_tensor(problem.hidden, [tiles.rows, tiles.depth]),
        TensorDescriptor.from_tensor(problem.weight, [tiles.columns, tiles.depth]),
    )


def launch_options(tiles: table.Tiles) -> dict[str, int]:
    return {
        "GROUP": table.ROW_GROUP,
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "DEPTH": tiles.depth,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
