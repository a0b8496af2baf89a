"""One agent: a policy, its tokenizer, its optimiser and the engine that samples from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, GenerationConfig, PretrainedConfig

from hacpo_fast.algorithm.cross_bound import CrossBound
from hacpo_fast.config import AgentConfig, Config
from hacpo_fast.errors import UserError
from hacpo_fast.non_finite import check_weights
from hacpo_fast.policy.fused_layers import fuse_layers
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.policy.optimizer_state import Offloaded, Resident
from hacpo_fast.policy.policy import Policy, longest_sequence
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.engine import Engine, Sampling
from hacpo_fast.rollouts.records import Rollout, record_rollouts
from hacpo_fast.rollouts.tokenizer import load_tokenizer
from hacpo_fast.run.phases import timed
from hacpo_fast.screening import ClipHistory
from hacpo_fast.sources import check_folders
from hacpo_fast.tasks.problems import Problem

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class ModelCard:
    """What can be known of an agent before its weights are loaded."""

    name: str
    settings: AgentConfig
    model_config: PretrainedConfig
    codec: Codec
    notes: tuple[str, ...] = ()

    @cached_property
    def context(self) -> int:
        """Tokens that a sequence may have."""
        return longest_sequence(self.model_config) or 1 << 30

    def dtype(self, device: torch.device) -> torch.dtype:
        if self.settings.dtype == "auto":
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return getattr(torch, self.settings.dtype)


def read_card(name: str, settings: AgentConfig) -> ModelCard:
    """Configuration and tokenizer of a model folder or hub name. Raises UserError naming the agent."""
    check_folders(name, settings)
    origin = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    place = settings.tokenizer or settings.model
    # Other libraries raise errors of a dozen types, some of them bare: a file may hold anything.
    try:
        model_config = AutoConfig.from_pretrained(settings.model, **origin)
    except Exception as error:
        raise _unreadable(name, settings, "model", settings.model, error) from error
    try:
        tokenizer, note = load_tokenizer(place, **origin)
    except Exception as error:
        raise _unreadable(name, settings, "tokenizer" if settings.tokenizer else "model", place, error) from error
    if type(model_config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(model_config, "auto_map", None):
        raise UserError(
            f"agents.{name}.model: {settings.model} is a {model_config.model_type} model, which transformers does not "
            "know as a causal language model; only those can be trained here"
        )
    largest, room = max(tokenizer.get_vocab().values()), model_config.get_text_config().vocab_size
    if largest >= room:
        raise UserError(
            f"agents.{name}: the tokenizer has token {largest}, but the model's vocabulary ends at {room - 1}; "
            "they do not belong together"
        )
    codec = Codec(tokenizer, _end_ids(name, settings, model_config, tokenizer), settings)
    return ModelCard(name, settings, model_config, codec, (f"agents.{name}: {note}",) if note else ())


def _unreadable(name: str, settings: AgentConfig, setting: str, place: str, error: Exception) -> UserError:
    if "trust_remote_code" in str(error) and not settings.trust_remote_code:
        return UserError(
            f"agents.{name}.{setting}: '{place}' comes with Python code of its own, which is run only if "
            f"agents.{name}.trust_remote_code is true; read that code first"
        )
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if "find them in the cached files" in reason:  # a paragraph about connections and offline modes follows
        reason = "no such folder, it is not in the hub's cache, and the hub cannot be reached"
    what = "model with a tokenizer" if setting == "model" else "tokenizer"
    return UserError(
        f"agents.{name}.{setting}: no {what} at '{place}' ({reason}); give a folder that "
        f"save_pretrained wrote, or a hub name. `hf download {place}` fetches one of the hub (after `hf auth login` "
        "where a licence must be accepted); `python -m hacpo_fast.demo` makes two small ones"
    )


def _end_ids(name: str, settings: AgentConfig, model_config: PretrainedConfig, tokenizer) -> set[int]:
    try:
        named = GenerationConfig.from_pretrained(settings.model, revision=settings.revision).eos_token_id
    except OSError:  # the file is optional
        named = model_config.get_text_config().eos_token_id
    ends = [*named, tokenizer.eos_token_id] if isinstance(named, (list, tuple)) else [named, tokenizer.eos_token_id]
    if wrong := [end for end in ends if not isinstance(end, int | None)]:
        raise UserError(
            f"agents.{name}.model: {settings.model} names the end token {wrong[0]!r}, which is no token's number; mend "
            "eos_token_id in its generation_config.json"
        )
    return {*ends} - {None}


class Agent:
    """Loads the weights of `card` and everything that trains them. `index` numbers the agents of a run.

    checkpoint: a folder that `save_training` wrote, to go on from; else the card's own weights are the start.
    engine: what samples from the policy; set by whoever opens the engines, after all policies are there.
    """

    engine: Engine

    def __init__(
        self, index: int, card: ModelCard, config: Config, device: torch.device, checkpoint: Path | None = None
    ):
        settings = card.settings
        self.index, self.name, self.codec = index, card.name, card.codec
        self.temperature = config.temperature(card.name)
        self.max_response_tokens = config.max_response_tokens(card.name)
        self.lr = config.lr(card.name)

        def load(path: str, **options) -> Policy:
            return Policy.load(
                path,
                dtype=card.dtype(device),
                device=device,
                trust_remote_code=settings.trust_remote_code,
                revision=settings.revision,
                attention=config.training.attention,
                **options,
            )

        weights = str(checkpoint) if checkpoint else settings.model
        self.policy = load(weights, gradient_checkpointing=config.training.gradient_checkpointing)
        check_weights(self.name, weights, self.policy.model)  # before what compares numbers: NaN equals nothing
        self.layers = fuse_layers(self.policy, config.training.layers)
        self.policy.verify()
        self.notes = self._share_prompts(config.training.share_prompts)  # for the user
        self.context = card.context
        self.reference = None  # the initial policy, where a KL term asks for it
        if config.algorithm.kl_coef:
            self.reference = load(settings.model)
            fuse_layers(self.reference, config.training.layers)
            self.reference.model.requires_grad_(False)
            self.reference.shares_prompts = self.policy.shares_prompts  # the same architecture
        training = config.training
        self.optimizer = MasterAdamW(
            self.policy.model.named_parameters(), training.betas, training.adam_eps, training.weight_decay,
            Offloaded if training.offload_optimizer and device.type == "cuda" else Resident,
        )  # fmt: skip
        self.updates = 0  # optimiser updates so far
        self.cross_bound = CrossBound(config.algorithm)
        self.clip_history = ClipHistory()
        self.skipped_in_a_row = 0  # since the last update that was finite
        if checkpoint:
            self.optimizer.load_state_dict(load_file(checkpoint / OPTIMIZER_FILE))

    @property
    def summary(self) -> str:
        """One line: what computes this agent, and how it is trained."""
        model, adamw = self.policy.model, self.optimizer
        masters = " with float32 masters" if adamw.rounded else ""
        return (
            f"agents.{self.name}: {model.num_parameters():,} parameters in {str(model.dtype).removeprefix('torch.')}; "
            f"attention: {self.policy.attention}; layers: {self.layers}; "
            f"{'fused ' if adamw.fused else ''}AdamW{masters}{', in host memory' if adamw.offloaded else ''}"
        )

    def _share_prompts(self, wanted: Literal["auto", True, False]) -> list[str]:
        if wanted is False:
            return []
        try:
            self.policy.share_prompts()
        except UserError as reason:
            if wanted is True:
                raise UserError(
                    f"agents.{self.name}: training.share_prompts=true is not possible: {reason}; set it to auto"
                ) from reason
            return [f"agents.{self.name}: responses do not share the copy of their prompt: {reason}"]
        return []

    def rollout(self, prompts: Sequence[np.ndarray], samples: int, seed: int) -> list[Rollout]:
        """`samples` responses of the present weights to each prompt (in the agent's tokens), prompt by prompt."""
        with timed("sync"):
            self.engine.sync()
        with timed("generate"):
            sampled = self.engine.generate(prompts, Sampling(samples, self.temperature, self.max_response_tokens), seed)
        with timed("decode_text"):
            return record_rollouts(self.index, self.codec, sampled)

    def progress(self) -> dict[str, Any]:
        """What training goes on from beside weights and optimiser, for JSON."""
        return {
            "updates": self.updates,
            "skipped_in_a_row": self.skipped_in_a_row,
            "clip_history": self.clip_history.state_dict(),
            "cross_bound": self.cross_bound.state_dict(),
        }

    def set_progress(self, progress: dict[str, Any]) -> None:
        """Goes on from what `progress` said."""
        self.updates, self.skipped_in_a_row = progress["updates"], progress["skipped_in_a_row"]
        self.clip_history.load_state_dict(progress["clip_history"])
        self.cross_bound.load_state_dict(progress["cross_bound"])

    def save(self, folder: Path) -> None:
        """Writes weights, configuration and tokenizer as a Hugging Face folder."""
        self.policy.model.save_pretrained(folder)
        self.codec.tokenizer.save_pretrained(folder)

    def save_training(self, folder: Path) -> None:
        """The same with the optimiser's state beside it: all that training goes on from."""
        self.save(folder)
        save_file(self.optimizer.state_dict(), folder / OPTIMIZER_FILE)


def encode_fitting(
    cards: Sequence[ModelCard], problems: Sequence[Problem], config: Config
) -> tuple[list[Problem], dict[str, dict[str, np.ndarray]]]:
    """Leaves out problems whose prompt is too long (or empty) for any agent; also each agent's tokens by problem id."""
    tokens: dict[str, dict[str, np.ndarray]] = {}
    for card in cards:
        response = max(config.max_response_tokens(card.name), config.validation.max_response_tokens or 0)
        room = card.context - response
        prompts = card.codec.encode_prompts(problems)
        if room < 1:
            wanted = min(max(map(len, prompts), default=1), config.rollout.max_prompt_tokens)
            most = card.context - wanted
            fitting = f"; beside the longest prompt, of {wanted}, at most {most} fit" if most > 0 else ""
            raise UserError(
                f"agents.{card.name}: a prompt and a response of {response} tokens do not "
                f"fit into the model's context of {card.context}; lower rollout.max_response_tokens, or "
                f"validation.max_response_tokens{fitting}"
            )
        longest = min(room, config.rollout.max_prompt_tokens)
        tokens[card.name] = {
            problem.id: ids for problem, ids in zip(problems, prompts, strict=True) if 0 < len(ids) <= longest
        }
    return [problem for problem in problems if all(problem.id in known for known in tokens.values())], tokens
