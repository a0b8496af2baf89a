"""Every Triton kernel compiled for chips that are not here, in every configuration that dispatch can choose.

Where several settings share a configuration, the one with everything switched on is compiled: it holds the most values
at once. Real compilations, so this file takes a minute or two.
"""

from __future__ import annotations

from importlib import import_module

import pytest
from aot import compile_all

from hacpo_kernels.triton import table

CHIPS = {80: "ampere", 89: "small", 90: "hopper", 100: "blackwell"}  # compute capability -> key of the table

FLOATS = "scale softcap own_lower own_upper cross_lower cross_upper power clamp denominator".split()
HALVES = "hidden weight bias out kept".split()
FLAGS = "is_own low_out high_out live_out".split()
INDICES = {"targets": "*i64", "live": "*i64", "cu_seqlens": "*i32"}
INTEGERS = """tokens vocab width stride_hidden stride_weight splits tiles_per_split parts first_token last_token
    first_vocab last_vocab columns stride_out stride_logits stride_kept part sequences""".split()
ALIGNED = "width stride_hidden stride_weight stride_out stride_logits stride_kept".split()

EVERYTHING = {"BIAS": True, "ROW_SCALE": True, "SOFTCAP": True, "ENTROPY": True}
SMALL = {
    "policy_loss sequence": ("policy_loss", "policy_loss_kernel", {"TOKEN_LEVEL": False, "BLOCK": 1024}),
    "policy_loss token": ("policy_loss", "policy_loss_kernel", {"TOKEN_LEVEL": True, "BLOCK": 1024}),
    "policy_loss sum": ("policy_loss", "loss_kernel", {"BLOCK": 1024}),
    "combine": ("logsumexp", "combine_kernel", EVERYTHING | {"DOT": True, "BLOCK": 256}),
    "statistics": ("tiles", "statistics_kernel", EVERYTHING | {"KEEP": True, "BLOCK": 1024}),
    "tile gradient": ("tiles", "tile_gradient_kernel", EVERYTHING | {"BLOCK": 1024}),
    "kept gradient": (
        "tiles",
        "kept_gradient_kernel",
        {"ROW_SCALE": True, "SOFTCAP": True, "BLOCK": 1024},
    ),
}
FUSED = {"logsumexp": ("logsumexp", "logsumexp_kernel"), "gradient": ("gradient", "gradient_kernel")}


def argument_type(name: str) -> str:
    if name in INTEGERS:
        return "i32"
    if name in FLOATS:
        return "fp32"
    if name in HALVES:
        return "*bf16"
    return "*i1" if name in FLAGS else INDICES.get(name, "*fp32")


def request(
    arch: int, module: str, kernel: str, constants: dict, warps: int = 4, stages: int = 3, **types: str
) -> dict:
    module = f"hacpo_kernels.triton.{module}"
    names = getattr(import_module(module), kernel).arg_names
    return {
        "arch": arch,
        "module": module,
        "kernel": kernel,
        "signature": {name: types.get(name, argument_type(name)) for name in names if name not in constants},
        "constants": constants,
        "divisible": [name for name in ALIGNED if name in names],
        "warps": warps,
        "stages": stages,
    }


def fused_request(arch: int, kind: str) -> dict:
    chip = CHIPS[arch]
    tiles, tma, rich = table.TILES[chip][kind], chip in table.TMA_CHIPS, kind.startswith("rich")
    module, kernel = FUSED[kind.removeprefix("rich ")]
    constants = {"TMA": tma, "BIAS": True, "ROW_SCALE": True, "SOFTCAP": rich, "ENTROPY": rich}
    constants |= {"GROUP": table.ROW_GROUP, "ROWS": tiles.rows, "COLUMNS": tiles.columns, "DEPTH": tiles.depth}
    types = {}
    if tma:
        types = {
            "hidden": f"tensordesc<bf16[{tiles.rows},{tiles.depth}]>",
            "weight": f"tensordesc<bf16[{tiles.columns},{tiles.depth}]>",
            "out": f"tensordesc<bf16[{tiles.rows},{tiles.columns}]>",
        }
    return request(arch, module, kernel, constants, tiles.warps, tiles.stages, **types)


def configurations() -> dict[str, dict]:
    requests = {}
    for arch, chip in CHIPS.items():
        for kind, tiles in table.TILES[chip].items():
            # A plain kernel in the tiles of its rich one does less with the same.
            if kind.startswith("rich") or table.TILES[chip][f"rich {kind}"] != tiles:
                requests[f"sm_{arch} {kind}"] = fused_request(arch, kind)
    requests |= {f"sm_90 {name}": request(90, *rest) for name, rest in SMALL.items()}
    return requests


@pytest.fixture(scope="module")
def reports():
    requests = configurations()
    return dict(zip(requests, compile_all(list(requests.values())), strict=True))


@pytest.mark.parametrize("name", configurations())
def test_compiles_for_the_chip(name, reports):
    report, (arch, kernel) = reports[name], name.split(" ", 1)
    limit = table.SHARED_MEMORY[CHIPS[int(arch[3:])]]
    assert report["target"].startswith(arch)
    assert report["spills"] == 0 and report["stack"] == 0
    assert report["registers"] <= 255
    assert report["shared"] <= limit
    assert report["narrow_offsets"] == []  # every offset into memory has 64 bits
    assert report["atomics"] == 0
    if kernel.removeprefix("rich ") in FUSED:
        assert report["matrix_instructions"] > 0
        assert (report["tma_loads"] > 0) == (arch in ("sm_90", "sm_100"))
