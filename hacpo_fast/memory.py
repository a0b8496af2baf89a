"""What a run will need of the device's memory, before anything is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

from hacpo_fast.agent import ModelCard
from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.policy.optimizer_state import CHUNK

# Tokens of a block of vLLM's KV cache; a sequence takes whole blocks.
CACHE_BLOCK = {"cpu": 128, "cuda": 16}
SPARE = 0.05  # of the device: allocators' own losses, what other libraries take


class AgentMemory(NamedTuple):
    """Bytes. Generation and activations come and go, one agent at a time; the rest stays for the whole run."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    engine_weights: int  # a second copy, where vLLM does not share the policy's
    kv_cache: int  # of a vLLM engine
    generation: int
    activations: int
    offloaded: int = 0  # of the optimiser, in the host's memory

    @property
    def lasting(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.reference + self.engine_weights + self.kv_cache

    @property
    def passing(self) -> int:
        return max(self.generation, self.activations)


def plan(
    cards: Sequence[ModelCard], config: Config, device: torch.device, engine: str, available: int, trained: bool = True
) -> list[AgentMemory]:
    """What each agent will need with `engine` (vllm or transformers); `trained`: or else it only answers.

    A vLLM engine's KV cache is as large as the settings say; else it holds all sequences that are sampled at once, or
    as many as fit into an equal share of what nothing else needs.

    Raises:
        UserError: a cache of the settings' size does not hold one sequence.
    """
    needs = [estimate(card, config, device, engine) for card in cards]
    if not trained:
        needs = [need._replace(gradients=0, optimizer=0, reference=0, activations=0, offloaded=0) for need in needs]
    if engine == "transformers":
        return needs
    taken = sum(need.lasting for need in needs) + max(need.passing for need in needs)
    share = int(available * (1 - SPARE) - taken) // len(needs)
    return [
        need._replace(kv_cache=_kv_cache(card, config, device, share)) for need, card in zip(needs, cards, strict=True)
    ]


def estimate(card: ModelCard, config: Config, device: torch.device, engine: str) -> AgentMemory:
    """All but vLLM's KV cache: weights, gradients, optimiser exactly, the rest as a dense transformer takes it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(card.model_config, trust_remote_code=card.settings.trust_remote_code)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = card.dtype(device).itemsize
    masters = 4 * parameters if size < 4 else 0
    optimizer, offloaded = 8 * parameters + masters, 0
    if config.training.offload_optimizer and device.type == "cuda":
        offloaded, optimizer = optimizer, min(optimizer, 2 * CHUNK * (12 if masters else 8))  # two chunks at a time
    text = card.model_config.get_text_config()
    longest = _longest(card, config)
    tokens = max(config.training.token_budget, longest)
    intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    layers, per_layer = text.num_hidden_layers, 8 * text.hidden_size + 3 * intermediate
    kept = text.hidden_size * layers + per_layer if config.training.gradient_checkpointing else per_layer * layers
    sequences, shared = config.rollout.batch_sequences, config.rollout.weights in ("auto", "shared")
    engine_dtype = _engine_dtype(card, config, device)
    if engine == "vllm":
        generation = 3 * 4 * sequences * text.vocab_size  # logits, their softmax and the noise to sample with
    else:
        generation = sequences * longest * _cached_per_token(card, card.dtype(device))
    return AgentMemory(
        weights=parameters * size,
        gradients=parameters * 4 if masters else parameters * size,
        optimizer=optimizer,
        reference=parameters * size if config.algorithm.kl_coef else 0,
        engine_weights=0
        if engine == "transformers" or (shared and engine_dtype == card.dtype(device))
        else parameters * engine_dtype.itemsize,
        kv_cache=0,
        generation=generation,
        activations=tokens * kept * size,
        offloaded=offloaded,
    )


def _kv_cache(card: ModelCard, config: Config, device: torch.device, share: int) -> int:
    block = CACHE_BLOCK.get(device.type, 16)
    per_block = block * _cached_per_token(card, _engine_dtype(card, config, device))
    per_sequence = math.ceil(_longest(card, config) / block)
    fewest, most = ((count * per_sequence + 2) * per_block for count in (1, config.rollout.batch_sequences))
    chosen = config.kv_cache_bytes(card.name)
    if chosen is None:
        return max(fewest, min(most, share))
    if chosen < fewest:
        raise UserError(
            f"agents.{card.name}: a KV cache of {readable(chosen)} does not hold one sequence; that takes "
            f"{readable(fewest)}. Raise kv_cache_gb or leave it empty"
        )
    return chosen


def _longest(card: ModelCard, config: Config) -> int:
    return min(card.context, config.max_sequence_tokens(card.name))


def _engine_dtype(card: ModelCard, config: Config, device: torch.device) -> torch.dtype:
    return card.dtype(device) if config.rollout.dtype == "auto" else getattr(torch, config.rollout.dtype)


def _cached_per_token(card: ModelCard, dtype: torch.dtype) -> int:
    """Bytes of keys and values in all layers."""
    text = card.model_config.get_text_config()
    heads = text.num_attention_heads
    width = (getattr(text, "num_key_value_heads", None) or heads) * (
        getattr(text, "head_dim", None) or text.hidden_size // heads
    )
    return 2 * text.num_hidden_layers * width * dtype.itemsize


def device_memory(device: torch.device) -> int:
    """Bytes that the device has: free ones of a GPU, all of the machine's otherwise."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host_memory()


def host_memory() -> int:
    """Bytes of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def readable(size: int) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1024:.1f} KiB" if size else "-"


def check(needs: Sequence[AgentMemory], available: int) -> int:
    """Bytes needed of the device in sum.

    Raises:
        UserError: they exceed `available`, or the host has no room for what is offloaded; names the setting to change.
    """
    offloaded = sum(need.offloaded for need in needs)
    if offloaded > (1 - SPARE) * host_memory():
        raise UserError(
            f"memory: training.offload_optimizer takes {readable(offloaded)} of the host's memory, which has "
            f"{readable(host_memory())}; set it to false, or use smaller or fewer agents"
        )
    needed = sum(need.lasting for need in needs) + max(need.passing for need in needs)
    if needed > available:
        largest = max(needs, key=lambda need: need.passing)
        caches, copies = sum(need.kv_cache for need in needs), sum(need.engine_weights for need in needs)
        if caches > needed / 4:
            advice = "lower kv_cache_gb, rollout.batch_sequences or rollout.max_response_tokens"
        elif copies > needed / 8 and needed - copies <= available:
            advice = "set rollout.weights=shared and rollout.dtype=auto: a second copy of the weights is too much"
        elif (
            largest.passing < needed / 4
            and not offloaded
            and needed - sum(need.optimizer for need in needs) <= available
        ):
            moved = readable(sum(need.optimizer for need in needs))
            advice = (
                f"set training.offload_optimizer=true, which keeps {moved} in the host's memory, or use smaller agents"
            )
        elif largest.passing < needed / 4:
            advice = "use smaller or fewer agents, agents.<name>.dtype=bfloat16 or training.offload_optimizer=true"
        elif largest.activations > largest.generation:
            advice = "lower training.token_budget or set training.gradient_checkpointing=true"
        else:
            advice = "lower rollout.batch_sequences or rollout.max_response_tokens"
        raise UserError(
            f"memory: the run needs about {readable(needed)}, the device has {readable(available)}; {advice}"
        )
    return needed
