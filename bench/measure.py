"""Time and peak memory of forward, backward and both, for pytest-benchmark."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from peers import DEVICE
from torch import Tensor

PHASES = ("forward", "backward", "both")


class Size(NamedTuple):
    tokens: int
    width: int
    vocab: int
    responses: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"T{self.tokens}-H{self.width}-V{self.vocab}-{str(self.dtype).removeprefix('torch.')}"


if DEVICE == "cuda":  # two widths, on either side of where the routes of the Triton backend are thought to cross
    SIZES = [Size(16384, width, 151936, 32, torch.bfloat16) for width in (2048, 4096)]
    ROUNDS, WARMUP = 5, 2
else:  # half precision on CPU would measure the CPU's lack of it
    SIZES = [Size(512, 576, 16384, 8, torch.float32)]
    ROUNDS, WARMUP = 3, 0  # the run that measures memory has warmed everything up


def projection(size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """hidden, weight (both want a gradient) and targets."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    shapes = ((size.tokens, size.width), (size.vocab, size.width))
    hidden, weight = (torch.randn(shape, generator=generator, device=DEVICE) for shape in shapes)
    targets = torch.randint(size.vocab, (size.tokens,), generator=generator, device=DEVICE)
    return hidden.to(size.dtype).requires_grad_(), (weight / size.width**0.5).to(size.dtype).requires_grad_(), targets


def measure(benchmark, phase: str, forward: Callable[[], Tensor], leaves: list[Tensor]) -> None:
    """forward() returns what a scalar loss is the sum of; gradients go to `leaves`."""

    def backward(result: Tensor) -> None:
        torch.autograd.grad(result.sum(), leaves)
        _wait()

    def run_forward() -> Tensor:
        result = forward()
        _wait()
        return result

    def both() -> None:
        backward(forward())

    run = {"forward": run_forward, "backward": backward, "both": both}[phase]
    prepare = (lambda: ((run_forward(),), {})) if phase == "backward" else (lambda: ((), {}))
    benchmark.extra_info["peak_MiB"] = round(_peak(run, prepare) / 2**20, 1)
    benchmark.pedantic(run, setup=prepare, rounds=ROUNDS, warmup_rounds=WARMUP, iterations=1)


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _peak(run: Callable[..., object], prepare: Callable[[], tuple]) -> int:
    """Bytes above what was there before, the results included: the allocator's on a GPU, resident ones on CPU."""
    arguments, _ = prepare()
    run(*arguments)  # imports, compilation and workspaces of libraries are not the operator's
    arguments, _ = prepare()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(*arguments)
        return torch.cuda.max_memory_allocated() - before
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed must not be there to be used again unseen
    before, largest, done = _resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.001):
            largest = max(largest, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run(*arguments)
    largest = max(largest, _resident())
    done.set()
    watcher.join()
    return max(0, largest - before)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
