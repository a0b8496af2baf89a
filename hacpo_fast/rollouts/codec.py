"""Between text and one agent's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from hacpo_fast.config import AgentConfig
from hacpo_fast.errors import UserError
from hacpo_fast.tasks.problems import Problem


class Codec:
    """An agent's tokenizer with its prompt format and end tokens.

    end_ids: every token that ends a response (the generation config may name several).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int], settings: AgentConfig):
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end_ids)
        if not self.end_ids:
            raise UserError(
                f"{settings.model}: neither the tokenizer nor the generation config names an end token (eos_token); "
                "without one no response can end. Set eos_token_id in generation_config.json"
            )
        preferred = tokenizer.eos_token_id
        self.eos_id = preferred if preferred in self.end_ids else min(self.end_ids)
        added = tokenizer.added_tokens_decoder.items()
        special = self.end_ids | set(tokenizer.all_special_ids) | {token for token, how in added if how.special}
        self._special = np.array(sorted(special))
        self._settings = settings
        self._anchor, self._anchor_ids = self._find_anchor()
        self.chat = _uses_chat(tokenizer, settings)

    def encode_prompts(self, problems: Sequence[Problem]) -> list[np.ndarray]:
        """Token ids of each problem in the agent's prompt format, ready to be continued."""
        if not problems:
            return []
        if self.chat:
            return [self._encode_chat(problem) for problem in problems]
        template = self._settings.prompt_template
        texts = [template.replace("{prompt}", problem.prompt) for problem in problems]
        prompts = [np.asarray(ids, dtype=np.int64) for ids in self.tokenizer(texts)["input_ids"]]
        # Some tokenizers end every text with their end token; a prompt that has ended cannot be continued.
        return [ids[:-1] if len(ids) and int(ids[-1]) in self.end_ids else ids for ids in prompts]

    def _encode_chat(self, problem: Problem) -> np.ndarray:
        options = self._settings.chat_template_options
        try:
            ids = self.tokenizer.apply_chat_template(
                list(problem.messages), add_generation_prompt=True, tokenize=True, return_dict=False, **options
            )
        except (TemplateError, TypeError, ValueError) as error:  # templates refuse roles, and options may not fit
            roles = ", ".join(message["role"] for message in problem.messages)
            raise UserError(
                f"{self._settings.model}: its chat template cannot write a conversation of {roles} "
                f"({type(error).__name__}: {error}); look at task.system_prompt and chat_template_options, or set "
                "prompt_format=plain"
            ) from error
        return np.asarray(ids)

    def exchanged(self, token_ids: np.ndarray) -> np.ndarray:
        """Which tokens of a response [L] make up the text that is exchanged: all but special ones, the end included."""
        return ~np.isin(token_ids, self._special)

    def decode(self, sequences: Sequence[np.ndarray]) -> list[str]:
        """The text of token ids as it stands behind a prompt, special tokens included."""
        anchored = [[*self._anchor_ids, *ids.tolist()] for ids in sequences]
        texts = self.tokenizer.batch_decode(anchored, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [text.removeprefix(self._anchor) for text in texts]

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Token ids of texts that others wrote; None where these tokens cannot write exactly that text.

        Nothing is added, and the letters of a special token's name stay letters: a text cannot end itself. An unknown
        character would turn it into another text, of which nobody was the author; so it is written and read back.
        """
        if not texts:
            return []
        encoded = self._encode([self._anchor + text for text in texts])
        start = len(self._anchor_ids)
        sequences = [np.asarray(ids[start:], dtype=np.int64) for ids in encoded]
        read_back = self.decode(sequences)
        return [
            ids if back == text and whole[:start] == self._anchor_ids else None
            for ids, whole, back, text in zip(sequences, encoded, read_back, texts, strict=True)
        ]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def _find_anchor(self) -> tuple[str, list[int]]:
        """What to put before a text so that its tokens are those it has behind a prompt.

        Tokenizers of the SentencePiece kind put a space before the first word of whatever they encode, and take one
        away when they decode. Behind a prompt both are wrong: "12" after "7+5=" is not " 12".
        """
        (one,) = self._encode(["1"])
        once, twice = self.tokenizer.batch_decode([one, one + one], clean_up_tokenization_spaces=False)
        if (once, twice) != ("1", "1 1"):
            return "", []
        anchor = "\n"  # a token of its own, that no merge joins with what follows
        return anchor, self._encode([anchor])[0]


def _uses_chat(tokenizer: PreTrainedTokenizerBase, settings: AgentConfig) -> bool:
    if settings.prompt_format == "chat" and not tokenizer.chat_template:
        raise UserError(
            f"{settings.model}: prompt_format is chat, but the tokenizer has no chat template; use prompt_format=plain "
            "or give a tokenizer that has one"
        )
    return settings.prompt_format != "plain" and bool(tokenizer.chat_template)
