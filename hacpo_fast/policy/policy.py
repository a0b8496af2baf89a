"""A language model as a policy: log-probs of response tokens, packed and without logits in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from hacpo_fast.errors import UserError
from hacpo_fast.policy.attention import HACPO_VARLEN, choose_attention, describe_attention, packed
from hacpo_fast.policy.batch import PackedBatch, TokenPair
from hacpo_fast.policy.head import Head
from hacpo_fast.policy.micro_batches import worth_sharing
from hacpo_fast.policy.probe import check_packing, check_sharing
from hacpo_kernels import linear_logprob


class Policy:
    """A causal language model, all of whose parameters are trained.

    The model is in eval mode: reinforcement learning compares log-probs of one policy at two times, and dropout would
    be noise in their ratio. It may generate, padded and with a KV cache, between packed forward passes.

    Attributes:
        model: the wrapped model.
        name: what messages call it.
        max_length: most tokens of a sequence, prompt and response, or None where the architecture sets no limit.
        shares_prompts: responses to a prompt may share one copy of it; set by `share_prompts`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str | None = None,
        gradient_checkpointing: bool = False,
        attention: str = "auto",
    ) -> None:
        """Wrap `model`, whose attention (see `choose_attention`), mode and gradient flags are set.

        Raises:
            UserError: the model has no decoder below its head, an unusual head, no gradient checkpointing, or not the
                attention that is asked for.
        """
        self.model = model
        self.name = name or model.config.name_or_path or type(model).__name__
        self.max_length = longest_sequence(model.config)
        self.shares_prompts = False
        self._trunk = _trunk(model)
        if self._trunk is None:
            raise UserError(f"{self.name}: {type(model).__name__} has no decoder that could be run without its head")
        Head.of(model)  # unusual heads are refused here rather than at the first step
        self._set_attention(attention)
        model.eval().requires_grad_(True)
        self._checkpointed = self._enable_checkpointing() if gradient_checkpointing else []

    @classmethod
    def load(
        cls,
        path: str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trust_remote_code: bool = False,
        revision: str | None = None,
        gradient_checkpointing: bool = False,
        attention: str = "auto",
    ) -> Policy:
        """Load from a folder or from the hub; weights from safetensors files only.

        Raises:
            UserError: there is no such model, it cannot be loaded as a causal language model, or its files lack some of
                its weights; and as in `Policy`.
        """
        try:
            model, loading = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=dtype,
                attn_implementation=HACPO_VARLEN,  # for now; what fits the device is set when it is there
                trust_remote_code=trust_remote_code,
                revision=revision,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # wrong names, formats, architectures and sizes raise a dozen unrelated types
            raise UserError(f"cannot load the model '{path}': {type(error).__name__}: {error}") from error
        # transformers draws these at random, and only warns.
        missing = sorted({name for name, _ in model.named_parameters()} & set(loading["missing_keys"]))
        if missing:
            raise UserError(
                f"cannot load the model '{path}': its files lack {len(missing)} tensors, such as {missing[0]}; they do "
                "not belong to this config.json, or a file is incomplete"
            )
        return cls(model.to(device), path, gradient_checkpointing, attention)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def head(self) -> Head:
        """The projection to the vocabulary, for operators that fuse it with what follows."""
        return Head.of(self.model)

    def hidden_rows(self, batch: PackedBatch) -> Tensor:
        """Hidden states that predict the batch's response tokens: [R, H] in the dtype of the weights, differentiable.

        Raises:
            UserError: a sequence is longer than the model can take.
        """
        if self.max_length is not None and batch.max_length > self.max_length:
            raise UserError(
                f"{self.name}: a sequence has {batch.max_length} tokens, the model takes {self.max_length}; "
                "lower rollout.max_prompt_tokens or rollout.max_response_tokens"
            )
        with packed(), self._checkpointing():
            output = self._trunk(
                input_ids=batch.input_ids.unsqueeze(0),
                position_ids=batch.position_ids.unsqueeze(0),
                use_cache=False,
                cu_seq_lens_q=batch.cu_seqlens,
                cu_seq_lens_k=batch.cu_seqlens,
                max_length_q=batch.max_length,
                max_length_k=batch.max_length,
                **({"shared_prompts": batch.shared} if batch.shared else {}),
            )
        hidden = output.last_hidden_state[0]
        return batch.shared_rows.rows(hidden) if batch.shared_rows else hidden.index_select(0, batch.rows)

    def token_logprobs(self, batch: PackedBatch, temperature: float = 1.0) -> Tensor:
        """log pi(token | prefix) of every response token at `temperature`: [R] float32, differentiable."""
        hidden = self.hidden_rows(batch)
        return linear_logprob(hidden, targets=batch.targets, **self.head.arguments(temperature))

    @torch.no_grad()
    def score(self, batch: PackedBatch, temperature: float = 1.0) -> Tensor:
        """`token_logprobs` without a gradient."""
        return self.token_logprobs(batch, temperature)

    def verify(self) -> float:
        """Check that packing does not change what this model computes; see `probe.check_packing`.

        Returns:
            The largest difference of a token's log-prob, packed against alone.

        Raises:
            UserError: they differ by more than rounding.
        """
        return check_packing(self)

    @property
    def attention(self) -> str:
        """What computes the attention of packed sequences, in words."""
        return describe_attention(self.model.config._attn_implementation, self.device, self.model.dtype)

    def _set_attention(self, wanted: str) -> None:
        chosen = choose_attention(self.device, self.model.dtype, wanted)
        if self.model.config._attn_implementation == chosen:
            return
        try:
            self.model.set_attn_implementation(chosen)
        except (ValueError, ImportError) as error:  # an architecture that flash-attn cannot serve
            if wanted != "auto":
                raise UserError(f"{self.name}: training.attention={wanted}: {error}") from error
            self.model.set_attn_implementation(HACPO_VARLEN)

    def share_prompts(self) -> None:
        """Check that shared prompts do not change what this model computes, and have them from now on.

        Raises:
            UserError: they do, or the model cannot; the message is the reason.
        """
        check_sharing(self)
        self.shares_prompts = True

    def groups(self, sequences: Sequence[TokenPair], prompts: np.ndarray) -> np.ndarray | None:
        """`prompts` [N], the numbers of the sequences' prompts, if these are to be shared; None if not.

        That is where `share_prompts` was successful and it saves enough tokens, see `worth_sharing`.
        """
        return prompts if self.shares_prompts and worth_sharing(sequences, prompts) else None

    def _enable_checkpointing(self) -> list[torch.nn.Module]:
        enable = getattr(self.model, "activation_checkpointing_enable", None)  # its name before: gradient_...
        try:
            (enable or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        except ValueError as error:
            raise UserError(f"{self.name}: {error}; set training.gradient_checkpointing=false") from error
        modules = [module for module in self.model.modules() if getattr(module, "gradient_checkpointing", False)]
        for module in modules:
            for attribute, value in vars(module).items():
                if "drop" in attribute and isinstance(value, float):
                    setattr(module, attribute, 0.0)  # they are in training mode at times, see below
        return modules

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Checkpoint the layers inside, where there is a gradient.

        transformers checkpoints layers in training mode only, and such layers drop the KV cache: so the flag of the
        layers themselves (not of the dropouts in them) is set for the packed forward pass, and never for generation.
        """
        for module in self._checkpointed:
            module.training = torch.is_grad_enabled()
        try:
            yield
        finally:
            for module in self._checkpointed:
                module.training = False


def _trunk(model: PreTrainedModel) -> torch.nn.Module | None:
    trunk = model.get_decoder()
    if trunk is model:  # transformers' own search fails where base_model_prefix names no attribute, as in Llama 4
        trunk = getattr(model, "model", None)
    return trunk


def longest_sequence(config: PretrainedConfig) -> int | None:
    """Most tokens that a sequence of a model may have, prompt and response; None where there is no limit."""
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Past this length all sequences of a batch would get other frequencies than the short ones get alone.
        limit = rope.get("original_max_position_embeddings") or limit
    return limit
