"""How often an agent is right on problems it has never met."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hacpo_fast.demo.worked import Task, answer, is_correct, prompt

LONGEST = 32
"""New tokens that an answer may take; a worked chain_sum takes at most 22."""


@torch.no_grad()
def responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    sample_seed: int | None = None,
    batch: int = 256,
) -> list[str]:
    """One response to each prompt: greedy, or drawn at temperature 1 from `sample_seed`."""
    how = {"do_sample": False}
    if sample_seed is not None:
        how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    model.eval()
    texts = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sample_seed or 0)
        for start in range(0, len(prompts), batch):
            encoded = tokenizer(
                prompts[start : start + batch],
                add_special_tokens=False,
                padding=True,
                return_token_type_ids=False,
                return_tensors="pt",
            )
            ids = model.generate(**encoded, max_new_tokens=LONGEST, **how)
            texts += tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts


def accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    expressions: list[str],
    sample_seed: int | None = None,
) -> float:
    """Share of `expressions`, each asked once, whose response is correct; `sample_seed` as for `responses`."""
    texts = responses(model, tokenizer, [prompt(expression) for expression in expressions], sample_seed)
    right = [is_correct(text, answer(task, each)) for text, each in zip(texts, expressions, strict=True)]
    return sum(right) / len(right)
