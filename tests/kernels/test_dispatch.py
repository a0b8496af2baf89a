"""Which backend, route and tiles are chosen."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from hacpo_kernels import dispatch
from hacpo_kernels.blocks import even_split
from hacpo_kernels.dispatch import resolve_backend
from hacpo_kernels.triton import table


class Fake:
    """Where a tensor would be and of what dtype."""

    def __init__(self, device, dtype=torch.bfloat16):
        self.device, self.dtype = torch.device(device), dtype


def test_auto_is_triton_on_cuda_and_torch_elsewhere():
    assert resolve_backend("auto", Fake("cuda"), Fake("cuda")) == "triton"
    assert resolve_backend("auto", Fake("cuda", torch.float64)) == "torch"
    assert resolve_backend("auto", Fake("cpu")) == "torch"
    assert resolve_backend("auto", Fake("mps")) == "torch"
    assert resolve_backend("torch", Fake("cuda")) == "torch"
    with mock.patch.object(dispatch, "TRITON_INSTALLED", False):
        assert resolve_backend("auto", Fake("cuda")) == "torch"
        with pytest.raises(ValueError, match="needs the package triton"):
            resolve_backend("triton", Fake("cuda"))


def test_kernels_for_nvidia_are_not_chosen_on_amd(monkeypatch):
    """There devices are called cuda too, and one has the compute capability of a Hopper."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert resolve_backend("auto", Fake("cuda")) == "torch"
    with pytest.raises(ValueError, match="is for NVIDIA GPUs"):
        resolve_backend("triton", Fake("cuda"))


def test_triton_where_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="runs on CUDA devices, got cpu"):
        resolve_backend("triton", Fake("cpu"))


def plan(chip, width, *, dtype=torch.bfloat16, weight=None, kind="logsumexp"):
    hidden = torch.empty(4, width, dtype=dtype)
    weight = torch.empty(10, width, dtype=dtype) if weight is None else weight
    with mock.patch.object(table, "chip_of", lambda _: chip):
        return table.plan(kind, hidden, weight)


@pytest.mark.parametrize("chip", table.TILES)
def test_routes(chip):
    assert plan(chip, 2048).route == "fused"
    assert plan(chip, 4096).route == "products"  # cuBLAS's rate outweighs the logits' way through memory
    assert plan(chip, 2048, dtype=torch.float32).route == "products"
    assert plan(chip, 2048, weight=torch.empty(10, 2048)).route == "products"  # dtypes differ
    assert plan(chip, 2048, weight=torch.empty(2048, 10, dtype=torch.bfloat16).T).route == "products"


@pytest.mark.parametrize("chip", table.TMA_CHIPS)
def test_descriptors_want_aligned_rows(chip):
    aligned = torch.empty(10, 2048 + 8, dtype=torch.bfloat16)[:, :2048]
    assert plan(chip, 2048, weight=aligned).tma
    shifted = torch.empty(10, 2048 + 8, dtype=torch.bfloat16)[:, 1:2049]
    assert not plan(chip, 2048, weight=shifted).tma and plan(chip, 2048, weight=shifted).route == "products"
    odd = torch.empty(10, 2049, dtype=torch.bfloat16)[:, :2048]
    assert plan(chip, 2048, weight=odd).route == "products"
    assert plan(chip, 2047).route == "products"


def test_chips_without_descriptors_use_pointers():
    assert plan("ampere", 2047) == table.Plan("fused", False, table.TILES["ampere"]["logsumexp"], 108)


@pytest.mark.parametrize(
    ("tokens", "vocab"), [(1, 151936), (16, 1000), (4096, 49152), (16384, 151936), (1 << 20, 50257)]
)
def test_programs_fill_the_chip_and_partial_results_stay_small(tokens, vocab):
    chosen = plan("hopper", 2048)
    per_split = table.tiles_per_split(tokens, vocab, chosen)
    assert 1 <= per_split <= table.MOST_TILES_PER_SPLIT
    tiles = -(-tokens // chosen.tiles.rows) * -(-vocab // chosen.tiles.columns)
    assert tiles // per_split >= min(tiles, 16 * chosen.multiprocessors)


@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (1, 7), (100, 151936), (20000, 151936), (1 << 20, 50257)])
def test_memory_tiles_stay_within_their_limits(rows, columns):
    height, width = table.memory_tile(rows, columns, 2, 512 << 20, 32768)
    assert 1 <= height <= 32768 and 1 <= width <= columns
    assert height * width * 2 <= 512 << 20
    assert width == columns or width % 256 == 0


def test_even_split_leaves_no_sliver():
    assert even_split(1025, 1024) == 513 and even_split(1024, 1024) == 1024
