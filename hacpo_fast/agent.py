"""One agent: a policy, its tokenizer, its optimiser and the engine that samples from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig

from hacpo_fast.config import AgentConfig, Config
from hacpo_fast.errors import UserError
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.policy.policy import Policy
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.engine import Engine, Sampling
from hacpo_fast.rollouts.records import Rollout, record_rollouts
from hacpo_fast.tasks.problems import Problem

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class ModelCard:
    """What can be known of an agent before its weights are loaded."""

    name: str
    settings: AgentConfig
    model_config: PretrainedConfig
    codec: Codec

    @cached_property
    def context(self) -> int:
        """Tokens that a sequence may have."""
        return getattr(self.model_config.get_text_config(), "max_position_embeddings", None) or 1 << 30

    def dtype(self, device: torch.device) -> torch.dtype:
        if self.settings.dtype == "auto":
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return getattr(torch, self.settings.dtype)


def read_card(name: str, settings: AgentConfig) -> ModelCard:
    """Configuration and tokenizer of a model folder or hub name. Raises UserError naming the agent."""
    _check_folder(name, settings.model)
    origin = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    try:
        model_config = AutoConfig.from_pretrained(settings.model, **origin)
        tokenizer = AutoTokenizer.from_pretrained(settings.tokenizer or settings.model, **origin)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"agents.{name}.model: no model with a tokenizer at '{settings.model}' ({reason}); give a folder that "
            f"save_pretrained wrote, or a hub name. `hf download {settings.model}` fetches one of the hub (after "
            "`hf auth login` where a licence must be accepted); `python -m hacpo_fast.demo` makes two small ones"
        ) from None
    largest, room = max(tokenizer.get_vocab().values()), model_config.get_text_config().vocab_size
    if largest >= room:
        raise UserError(
            f"agents.{name}: the tokenizer has token {largest}, but the model's vocabulary ends at {room - 1}; "
            "they do not belong together"
        )
    return ModelCard(
        name, settings, model_config, Codec(tokenizer, _end_ids(settings, model_config, tokenizer), settings)
    )


def _check_folder(name: str, model: str) -> None:
    """A folder must hold safetensors; what is no folder but lies beside others is no name of the hub either."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not any(folder.glob("*.safetensors")):
            raise UserError(
                f"agents.{name}.model: {folder} has no *.safetensors; weights in other formats are not loaded, convert "
                "them with save_pretrained"
            )
    elif folder.is_absolute() or (len(folder.parts) > 1 and folder.parent.is_dir()):
        there = sorted(path.name for path in folder.parent.glob("*/") if (path / "config.json").exists())
        raise UserError(
            f"agents.{name}.model: there is no folder {folder}"
            + (f"; {folder.parent} has {', '.join(there)}" if there else "")
        )


def _end_ids(settings: AgentConfig, model_config: PretrainedConfig, tokenizer) -> set[int]:
    try:
        named = GenerationConfig.from_pretrained(settings.model, revision=settings.revision).eos_token_id
    except OSError:  # the file is optional
        named = model_config.get_text_config().eos_token_id
    ends = set(named) if isinstance(named, (list, tuple)) else {named}
    return (ends | {tokenizer.eos_token_id}) - {None}


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
                **options,
            )

        weights = str(checkpoint) if checkpoint else settings.model
        self.policy = load(weights, gradient_checkpointing=config.training.gradient_checkpointing)
        self.policy.verify()
        self.context = min(card.context, self.policy.max_length or card.context)  # tokens of a sequence
        self.reference = None  # the initial policy, where a KL term asks for it
        if config.algorithm.kl_coef:
            self.reference = load(settings.model)
            self.reference.model.requires_grad_(False)
        training = config.training
        self.optimizer = MasterAdamW(
            self.policy.model.named_parameters(), training.betas, training.adam_eps, training.weight_decay
        )
        self.updates = 0  # optimiser updates so far
        if checkpoint:
            self.optimizer.load_state_dict(load_file(checkpoint / OPTIMIZER_FILE))

    def rollout(self, prompts: Sequence[np.ndarray], samples: int, seed: int) -> list[Rollout]:
        """`samples` responses of the present weights to each prompt (in the agent's tokens), prompt by prompt."""
        self.engine.sync()
        sampling = Sampling(samples, self.temperature, self.max_response_tokens)
        return record_rollouts(self.index, self.codec, self.engine.generate(prompts, sampling, seed))

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
        if room < 1:
            raise UserError(
                f"agents.{card.name}: a prompt and a response of {response} tokens do not "
                f"fit into the model's context of {card.context}; lower rollout.max_response_tokens"
            )
        longest = min(room, config.rollout.max_prompt_tokens)
        prompts = card.codec.encode_prompts(problems)
        tokens[card.name] = {
            problem.id: ids for problem, ids in zip(problems, prompts, strict=True) if 0 < len(ids) <= longest
        }
    return [problem for problem in problems if all(problem.id in known for known in tokens.values())], tokens
