"""Teacher forcing: cross-entropy of worked answers, given their prompts, minimised with AdamW."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hacpo_fast.demo.recipe import Pace

Example = tuple[str, str]
"""A prompt and the response to learn."""

IGNORE = -100
"""Target of a position without loss (the default of `cross_entropy`)."""


def encode(tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Inputs and their next-token targets, int64 [examples, longest - 1].

    Padded on the right, where causal attention keeps the padding from reaching anything that counts; targets are the
    tokens of the responses and the end of sequence, and `IGNORE` elsewhere.
    """
    prompts, responses = zip(*examples, strict=True)
    prompt_ids = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    response_ids = tokenizer(list(responses), add_special_tokens=False)["input_ids"]
    rows = [[*p, *r, tokenizer.eos_token_id] for p, r in zip(prompt_ids, response_ids, strict=True)]
    longest = max(map(len, rows))
    inputs = torch.full((len(rows), longest), tokenizer.pad_token_id)
    targets = torch.full((len(rows), longest), IGNORE)
    for i, (row, start) in enumerate(zip(rows, map(len, prompt_ids), strict=True)):
        inputs[i, : len(row)] = torch.tensor(row)
        targets[i, start : len(row)] = inputs[i, start : len(row)]
    return inputs[:, :-1], targets[:, 1:]


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draw: Callable[[int], list[Example]],
    pace: Pace,
) -> Iterator[float]:
    """Trains in place on batches from `draw(count)`; gives the mean loss per response token (nats) after each step.

    A caller that has seen enough stops iterating.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=pace.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for step in range(pace.steps):
        for group in optimizer.param_groups:
            group["lr"] = pace.rate_at(step)
        inputs, targets = encode(tokenizer, draw(pace.batch))
        model.train()  # a caller may have measured something since the step before
        logits = model(inputs, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


@torch.no_grad()
def trace_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> float:
    """Share of the examples that greedy decoding would write out token for token, from one forward pass."""
    model.eval()
    inputs, targets = encode(tokenizer, examples)
    right = model(inputs, use_cache=False).logits.argmax(-1).eq(targets) | targets.eq(IGNORE)
    return right.all(-1).float().mean().item()
