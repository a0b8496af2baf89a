"""What a forward pass keeps for the backward pass: bounded by the tokens of a micro-batch; less with checkpointing."""

from __future__ import annotations

import numpy as np
import policy_models as tiny
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from hacpo_fast.policy import attention
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.policy import Policy


def kept_bytes(policy: Policy, batch: PackedBatch) -> int:
    """Bytes of all storages that the graph holds, without parameters, and without those that are made again."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
    sizes = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = policy.hidden_rows(batch)
    assert hidden.requires_grad  # the graph lives until here: no two storages had the same place
    return sum(sizes.values())


def batch_of(tokens: int, sequences: int) -> PackedBatch:
    generator = np.random.default_rng(0)
    length = tokens // sequences // 2
    pairs = [tuple(generator.integers(tiny.VOCABULARY, size=n) for n in (length, length + 1)) for _ in range(sequences)]
    return PackedBatch.build(pairs)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2_window_softcap"])
def test_checkpointing_keeps_less_and_gives_the_same_gradients(name):
    batch = batch_of(512, 16)
    plain, checkpointed = (Policy(tiny.build(name), gradient_checkpointing=on) for on in (False, True))
    before, after = (kept_bytes(policy, batch) for policy in (plain, checkpointed))
    # The input of every layer and what comes after the last one, beside rotary angles and indices.
    assert after < before / 4
    weights = tiny.weights(len(batch.targets))
    for policy in (plain, checkpointed):
        (policy.token_logprobs(batch) * weights).sum().backward()
    expected, found = tiny.gradients(plain.model), tiny.gradients(checkpointed.model)
    assert expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


def test_what_is_kept_depends_on_the_tokens_and_not_on_how_many_sequences_they_are(monkeypatch):
    policy = Policy(tiny.build("llama"))
    batched = kept_bytes(policy, batch_of(512, 16))
    monkeypatch.setattr(attention, "batches_pay", lambda *_: False)  # a call for each sequence, however short they are
    one, many, twice = (kept_bytes(policy, batch_of(*shape)) for shape in ((512, 4), (512, 16), (1024, 16)))
    assert 0.95 < many / one < 1.05
    assert 1.9 < twice / many < 2.1
    assert batched < many  # sequences of similar length in one call keep less, not more
