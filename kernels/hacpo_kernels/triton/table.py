"""Which way the vocabulary projection goes, and in which tiles, by chip and problem.

Two routes give the same results:

- "fused": a Triton kernel multiplies and reduces in registers; logits reach memory in no form.
- "products": cuBLAS writes float32 logits of one tile of tokens x vocabulary, a Triton kernel reads them back.

What decides. The products route moves 8 bytes per logit more than the fused one, whatever the width H; the fused one
has a lower rate, and so loses time in proportion to H. With published rates on H100-class chips (Triton 600, cuBLAS 790
TFLOP/s, 4 TB/s) the two meet near H = 3000. These rates are other people's: nothing here was measured by us yet, and
`make gpu-check` measures both routes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..blocks import even_split

FUSED_UP_TO_WIDTH = 3072


class Tiles(NamedTuple):
    """One configuration of a kernel: logits of rows x columns at a time, from `depth` of the width per step."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# Kinds of kernel: "logsumexp" (forward) and "gradient" (of the logits); "rich" ones also do the entropy or a softcap. A
# 128 x 256 tile has the fewest bytes of shared memory read per product. Its accumulator takes 128 of 255 registers, so
# the rich kernels, which hold several functions of a logit at once, get 128 x 128, and the rich gradient 128 x 64: one
# column block more and triton 3.7 spills. Stages fill shared memory. Every entry is compiled in the tests.
TILES = {
    "hopper": {  # 227 KiB of shared memory per block
        "logsumexp": Tiles(128, 256, 64, warps=8, stages=4),
        "rich logsumexp": Tiles(128, 128, 64, warps=8, stages=4),
        "gradient": Tiles(128, 256, 64, warps=8, stages=3),
        "rich gradient": Tiles(128, 64, 64, warps=8, stages=4),
    },
    "blackwell": {  # as Hopper, but there the wide gradient kernel spills with triton 3.6
        "logsumexp": Tiles(128, 256, 64, warps=8, stages=4),
        "rich logsumexp": Tiles(128, 128, 64, warps=8, stages=4),
        "gradient": Tiles(128, 128, 64, warps=8, stages=4),
        "rich gradient": Tiles(128, 64, 64, warps=8, stages=4),
    },
    "ampere": dict.fromkeys(  # A100: 163 KiB, no TMA; addresses and operands take registers, so the tile is smaller
        ("logsumexp", "rich logsumexp", "gradient", "rich gradient"), Tiles(128, 128, 64, warps=8, stages=4)
    ),
    "small": dict.fromkeys(  # every other chip from 8.6 on: 99 KiB
        ("logsumexp", "rich logsumexp", "gradient", "rich gradient"), Tiles(128, 128, 32, warps=8, stages=3)
    ),
}
SHARED_MEMORY = {"hopper": 232448, "blackwell": 232448, "ampere": 166912, "small": 101376}  # bytes per block
MULTIPROCESSORS = {"hopper": 132, "blackwell": 148, "ampere": 108, "small": 80}  # where no device can be asked
TMA_CHIPS = ("hopper", "blackwell")

# Few tokens (a decoding batch, the tail of a mini-batch) leave most of a 128-row tile empty, while the weight streams
# through at the speed of memory: any tile would do, so there is no extra row for them.

# Row blocks that run side by side over the same columns. 16 of them x 128 rows x H = 4096 in bfloat16 are 16 MiB, which
# stay in the second-level cache (50 MiB on H100) beside the columns of the weight that stream past.
ROW_GROUP = 16
# A program of the forward kernel visits this many column tiles at most: enough to make its partial results few, not so
# many that the last wave of programs leaves most of the chip idle.
MOST_TILES_PER_SPLIT = 8

# Tiles in memory. Gradients of logits: the two products that consume them want both extents in the thousands, and the
# hidden gradient is read and written once per vocabulary slice. 512 MiB are 16384 rows x 16384 columns in bfloat16.
GRADIENT_BYTES = 512 << 20
GRADIENT_ROWS = 32768
# float32 logits of the products route: written and read once, so their extents matter little.
LOGITS_BYTES = 256 << 20
LOGITS_ROWS = 8192

# linear_policy_loss keeps a chunk's exponentials: 4096 rows of a vocabulary of 151936 in bfloat16. Each chunk reads and
# writes the float32 gradient of the weight once, which with 4096 rows is about a twentieth of its products' time.
KEPT_BYTES = 5 << 28
CHUNK_ROWS = 8192


class Plan(NamedTuple):
    """How one call runs; `tma` and `tiles` are for the fused route only."""

    route: str
    tma: bool
    tiles: Tiles
    multiprocessors: int


def plan(kind: str, hidden: Tensor, weight: Tensor) -> Plan:
    """The plan for a kernel of `kind`; hidden [T, H] and weight [V, H] as the caller gave them."""
    chip = chip_of(hidden.device)
    tma = chip in TMA_CHIPS and _tma_can_read(hidden) and _tma_can_read(weight)
    fusable = hidden.dtype == weight.dtype and hidden.dtype.itemsize == 2 and _rows_contiguous(hidden, weight)
    # Unaligned operands on a TMA chip: rare enough to be left to cuBLAS. float32 without TF32: no tensor cores, where
    # Triton's products are far behind cuBLAS's.
    fused = fusable and hidden.shape[1] <= FUSED_UP_TO_WIDTH and (tma or chip not in TMA_CHIPS)
    return Plan("fused" if fused else "products", tma, TILES[chip][kind], _multiprocessors(hidden.device, chip))


def chip_of(device: torch.device) -> str:
    """A key of `TILES`. Only the interpreter's tests run on other devices than CUDA."""
    if device.type != "cuda":
        return "small"
    major, minor = torch.cuda.get_device_capability(device)
    return {(8, 0): "ampere", (9, 0): "hopper", (10, 0): "blackwell", (10, 3): "blackwell"}.get((major, minor), "small")


def _multiprocessors(device: torch.device, chip: str) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS[chip]
    return torch.cuda.get_device_properties(device).multi_processor_count


def _rows_contiguous(*matrices: Tensor) -> bool:
    return all(matrix.stride(1) == 1 for matrix in matrices)


def _tma_can_read(matrix: Tensor) -> bool:
    """What the tensor memory accelerator demands of a matrix of halves: 16-byte alignment of each of its rows."""
    size = matrix.element_size()
    return (
        matrix.numel() > 0
        and matrix.stride(1) == 1
        and matrix.data_ptr() % 16 == 0
        and matrix.stride(0) * size % 16 == 0
        and matrix.stride(0) >= matrix.shape[1]
    )


def tiles_per_split(tokens: int, vocab: int, plan: Plan) -> int:
    """Column tiles that one program of the forward kernel visits."""
    tiles = -(-tokens // plan.tiles.rows) * -(-vocab // plan.tiles.columns)
    return max(1, min(MOST_TILES_PER_SPLIT, tiles // (16 * plan.multiprocessors)))


def memory_tile(rows: int, columns: int, itemsize: int, most_bytes: int, most_rows: int) -> tuple[int, int]:
    """(rows, columns) of a tile in memory within the limits, split evenly, columns in multiples of 256 if cut."""
    tile_rows = even_split(max(rows, 1), most_rows)
    most_columns = max(most_bytes // (itemsize * tile_rows) // 256 * 256, 256)
    tile_columns = -(-even_split(columns, most_columns) // 256) * 256
    return tile_rows, min(tile_columns, columns)
