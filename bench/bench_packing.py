"""Packing and balancing of 100,000 sequences beside TRL's and verl's.

    pytest bench/bench_packing.py

`fill_percent`: tokens in the bins over the room of these bins. `imbalance_percent`: what the heaviest load has above
the mean one.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from hacpo_fast.policy.balance import balance
from hacpo_fast.policy.packing import pack

SEQUENCES, BUDGET, RANKS = 100_000, 16_384, 8
VERL = "verl cannot be imported here: pip install --no-deps verl, and ray, tensordict and what they ask for"


def _lengths(kind: str) -> np.ndarray:
    draw = np.random.default_rng(0)
    lengths = {
        "lognormal": lambda: draw.lognormal(6, 1, SEQUENCES),
        "bimodal": lambda: np.where(draw.random(SEQUENCES) < 0.8, 300, 4000) + draw.normal(0, 60, SEQUENCES),
        "equal": lambda: np.full(SEQUENCES, 512),
        "giants": lambda: np.where(draw.random(SEQUENCES) < 0.001, 16_000, draw.integers(1, 200, SEQUENCES)),
    }[kind]()  # fmt: skip
    return np.clip(lengths.astype(np.int64), 1, BUDGET)


def _trl_packer(lengths: np.ndarray):
    """TRL's packing of a table of sequences of these lengths. Tokens are of 8 bits, so that copying them is cheap."""
    import pyarrow
    from trl.data_utils import _pack_bfd

    ends = np.concatenate([[0], np.cumsum(lengths)])
    tokens = pyarrow.LargeListArray.from_arrays(pyarrow.array(ends), pyarrow.array(np.zeros(ends[-1], np.int8)))
    table = pyarrow.table({"input_ids": tokens})
    return lambda: len(_pack_bfd(table, BUDGET))


PACKERS = {
    "hacpo_fast": lambda lengths: lambda: len(pack(lengths, BUDGET)),
    "TRL bfd": _trl_packer,
}


@pytest.mark.parametrize("kind", ["lognormal", "bimodal", "equal", "giants"])
@pytest.mark.parametrize("name", PACKERS)
def bench_pack(benchmark, name, kind):
    if name == "TRL bfd" and not importlib.util.find_spec("trl"):
        pytest.skip("TRL is not installed: pip install 'hacpo_fast[bench]'")
    benchmark.group = f"pack {SEQUENCES} {kind}"
    lengths = _lengths(kind)
    bins = benchmark.pedantic(PACKERS[name](lengths), rounds=3, warmup_rounds=1)
    benchmark.extra_info["bins"] = bins
    benchmark.extra_info["least_bins"] = int(-(-lengths.sum() // BUDGET))
    benchmark.extra_info["fill_percent"] = round(100 * lengths.sum() / (bins * BUDGET), 2)


def _verl(costs: np.ndarray, equal_counts: bool) -> list[list[int]]:
    try:
        from verl.utils.seqlen_balancing import karmarkar_karp
    except ImportError:
        pytest.skip(VERL)
    return karmarkar_karp(costs.tolist(), RANKS, equal_counts)


BALANCERS = {
    "hacpo_fast": lambda costs, equal_counts: balance(costs, RANKS, equal_counts),
    "verl karmarkar_karp": _verl,
}


@pytest.mark.parametrize("count", ["any counts", "equal counts"])
@pytest.mark.parametrize("kind", ["lognormal", "giants"])
@pytest.mark.parametrize("name", BALANCERS)
def bench_balance(benchmark, name, kind, count):
    """A tenth of the sequences: verl's is in Python."""
    benchmark.group = f"balance {SEQUENCES // 10} {kind} over {RANKS} ranks, {count}"
    costs, equal = _lengths(kind)[: SEQUENCES // 10], count == "equal counts"
    parts = benchmark.pedantic(lambda: BALANCERS[name](costs, equal), rounds=3, warmup_rounds=1)
    loads = [costs[part].sum() for part in parts]
    benchmark.extra_info["imbalance_percent"] = float(f"{100 * (max(loads) / np.mean(loads) - 1):.3g}")
