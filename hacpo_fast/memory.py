"""What a run will need of the device's memory, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

from hacpo_fast.agent import ModelCard
from hacpo_fast.config import Config
from hacpo_fast.errors import UserError


class AgentMemory(NamedTuple):
    """Bytes. All but the last two stay for the whole run; those come and go, one agent at a time."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    cache: int
    activations: int

    @property
    def lasting(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.reference

    @property
    def passing(self) -> int:
        return max(self.cache, self.activations)


def estimate(card: ModelCard, config: Config, device: torch.device) -> AgentMemory:
    """Weights, gradients and optimiser are exact; cache and activations are what a dense transformer takes."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(card.model_config, trust_remote_code=card.settings.trust_remote_code)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = card.dtype(device).itemsize
    masters = 4 * parameters if size < 4 else 0
    text = card.model_config.get_text_config()
    heads = text.num_attention_heads
    kv_width = (getattr(text, "num_key_value_heads", None) or heads) * (
        getattr(text, "head_dim", None) or text.hidden_size // heads
    )
    longest = min(card.context, config.rollout.max_prompt_tokens + config.max_response_tokens(card.name))
    cached_tokens = config.rollout.batch_sequences * longest
    tokens = max(config.training.token_budget, longest)
    intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    per_layer = text.hidden_size if config.training.gradient_checkpointing else 8 * text.hidden_size + 3 * intermediate
    return AgentMemory(
        weights=parameters * size,
        gradients=parameters * 4 if masters else parameters * size,
        optimizer=8 * parameters + masters,
        reference=parameters * size if config.algorithm.kl_coef else 0,
        cache=2 * text.num_hidden_layers * kv_width * cached_tokens * size,
        activations=tokens * per_layer * text.num_hidden_layers * size,
    )


def device_memory(device: torch.device) -> int:
    """Bytes that the device has: free ones of a GPU, all of the machine's otherwise."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def readable(size: int) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1024:.1f} KiB" if size else "-"


def check(needs: Sequence[AgentMemory], available: int) -> int:
    """Bytes needed in sum. Raises UserError naming the setting to lower if they exceed `available`."""
    needed = sum(need.lasting for need in needs) + max(need.passing for need in needs)
    if needed > available:
        largest = max(needs, key=lambda need: need.passing)
        if largest.passing < needed / 4:
            advice = "use smaller or fewer agents, or agents.<name>.dtype=bfloat16"
        elif largest.activations > largest.cache:
            advice = "lower training.token_budget or set training.gradient_checkpointing=true"
        else:
            advice = "lower rollout.batch_sequences or rollout.max_response_tokens"
        raise UserError(
            f"memory: the run needs about {readable(needed)}, the device has {readable(available)}; {advice}"
        )
    return needed
