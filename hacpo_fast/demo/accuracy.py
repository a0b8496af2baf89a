"""How often an agent is right on problems it has never met."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hacpo_fast.demo.worked import Task, answer, is_correct, prompt

LONGEST = 32
"""New tokens that an answer may take; a worked chain_sum takes at most 22."""


@torch.no_grad()
def responses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], sample: bool, batch: int = 256
) -> list[str]:
    """One response to each prompt: drawn at temperature 1 from the global random state, or greedy."""
    model.eval()
    texts = []
    for start in range(0, len(prompts), batch):
        encoded = tokenizer(
            prompts[start : start + batch], add_special_tokens=False, padding=True, return_tensors="pt"
        )
        ids = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=LONGEST,
            **({"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}),
        )
        texts += tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts


def accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, expressions: list[str], sample: bool
) -> float:
    """Share of `expressions` (each asked once) whose response is correct."""
    texts = responses(model, tokenizer, [prompt(expression) for expression in expressions], sample)
    right = [is_correct(text, answer(task, each)) for text, each in zip(texts, expressions, strict=True)]
    return sum(right) / len(right)
