"""Sampling with vLLM in the trainer's own process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hacpo_fast.errors import UserError
from hacpo_fast.rollouts import vllm_library
from hacpo_fast.rollouts.engine import Sample, Sampling


class VllmSettings(NamedTuple):
    """What one engine is made from."""

    model: str  # folder or hub name; its configuration is read there, its weights are not
    end_ids: Sequence[int]
    dtype: torch.dtype
    device: torch.device
    max_tokens: int  # of a sequence, prompt and response
    max_sequences: int  # sampled at once
    kv_cache_bytes: int
    unpacked: bool = True  # see `vllm_library.weights`
    revision: str | None = None
    trust_remote_code: bool = False

    def arguments(self) -> dict[str, Any]:
        """Those of `vllm.LLM`."""
        on_cpu = {
            "enforce_eager": True,
            # A prompt computed in pieces takes back the random numbers of all but the last; a CPU's generator cannot.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4096, self.max_tokens),
        }
        return {
            "model": self.model,
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
            "dtype": str(self.dtype).removeprefix("torch."),
            "max_model_len": self.max_tokens,
            "max_num_seqs": self.max_sequences,
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "gpu_memory_utilization": 0.01,  # must be free, is else unused: the bytes above decide
            "enable_prefix_caching": True,  # the samples of a prompt share its keys and values
            "load_format": "dummy",  # the weights are the policy's
            "model_impl": "vllm",
            "logprobs_mode": "processed_logprobs",  # at the temperature
            "generation_config": "vllm",  # no sampling settings or end tokens from the model's folder
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "seed": 0,
            **(on_cpu if self.device.type == "cpu" else {}),
        }


class VllmEngine:
    """Answers with the weights that `synchronise` keeps up to date.

    A fresh engine has meaningless weights and no `synchronise`: `weights.connect` gives it both. Engines of one process
    work one after another and are closed together: closing one ends the process groups that all of them use.
    """

    def __init__(self, settings: VllmSettings):
        """Raises UserError if vLLM cannot serve the model."""
        self.settings = settings
        self.synchronise: Callable[[], None] | None = None
        vllm = vllm_library.load()
        try:
            with vllm_library.starting(), vllm_library.weights(settings.unpacked):
                self.llm = vllm.LLM(**settings.arguments())
        except Exception as error:  # whatever it is, it comes from outside and is about this model on this machine
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise UserError(f"vLLM cannot serve {settings.model}: {reason[0]}") from error
        self._check_heads()

    @property
    def module(self) -> nn.Module:
        """The model that computes."""
        return self.llm.apply_model(lambda model: model)[0]

    @property
    def cache_block(self) -> int:
        """Tokens of a block of the KV cache: shorter beginnings of prompts are never shared."""
        return self.llm.llm_engine.vllm_config.cache_config.block_size

    def sync(self) -> None:
        """See `Engine.sync`. Keys and values of the old weights are dropped."""
        assert self.synchronise is not None, "the engine has no weights yet"
        self.synchronise()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache of vLLM could not be reset")

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seed: int) -> list[list[Sample]]:
        """See `Engine.generate`. With top_p or top_k, log-probs are those of the filtered distribution."""
        from vllm import SamplingParams

        if not prompts:
            return []
        # A stream of its own for every prompt (sample i of a prompt gets seed + i), whatever is scheduled beside it.
        seeds = np.random.SeedSequence(seed).generate_state(len(prompts), np.uint64) >> 2
        parameters = [
            SamplingParams(
                n=sampling.samples,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                seed=int(request_seed),
                stop_token_ids=sorted(self.settings.end_ids),
                ignore_eos=True,  # of vLLM's own idea of an end; the ids above are all there are
                logprobs=0,  # of the sampled token alone
                flat_logprobs=True,
                detokenize=False,
            )
            for request_seed in seeds
        ]
        requests = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        outputs = self.llm.generate(requests, parameters, use_tqdm=False)
        return [[_sample(answer) for answer in output.outputs] for output in outputs]

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Weights in the checkpoint's format and names, by the model's own mapping, for unpacked models."""
        self.module.load_weights(weights)

    def reload(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """The same for any model: slower, since layers are taken apart, loaded and processed anew."""
        with vllm_library.quiet(), vllm_library.weights(self.settings.unpacked):
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

    def close(self) -> None:
        """Frees everything but weights that a policy shares. Close all engines of a process, then make new ones."""
        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = self.synchronise = None
            gc.collect()

    def _check_heads(self) -> None:
        # Some of vLLM's models have their own idea of the head size; a wrong one fails only when it generates.
        sizes = {size for layer in self.module.modules() if isinstance(size := getattr(layer, "head_size", None), int)}
        reasons = [vllm_library.unsupported_head(size, self.settings.device) for size in sizes]
        for reason in filter(None, reasons):
            self.close()
            raise UserError(f"{self.settings.model}: {reason}")


def _sample(answer: Any) -> Sample:
    return Sample(
        np.asarray(answer.token_ids, dtype=np.int64),
        np.asarray(answer.logprobs.logprobs, dtype=np.float32),
        answer.finish_reason == "stop",
    )
