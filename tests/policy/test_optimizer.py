from __future__ import annotations

import copy
import math

import policy_models as tiny
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from hacpo_fast.errors import UserError
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.policy.policy import Policy


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).to(dtype)


def learn(model: nn.Module, seed: int = 0, scale: float = 1.0) -> None:
    """One backward pass."""
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)).to(next(model.parameters()).dtype)
    (model(inputs).square().sum() * scale).backward()


def snapshot(model: nn.Module, optimizer: MasterAdamW) -> dict[str, torch.Tensor]:
    tensors = dict(model.named_parameters()) | optimizer.state_dict()
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_identical(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


def test_equals_adamw_with_clipping():
    ours, theirs = network(), network()
    optimizer = MasterAdamW(ours.named_parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    groups = [{"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": 0.1}]
    groups += [{"params": [p for p in theirs.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    for seed in range(4):
        learn(ours, seed)
        learn(theirs, seed)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()
        reference.zero_grad()
        torch.testing.assert_close(optimizer.clip_and_norm(1.0), expected)
        update = optimizer.step(0.01)
        assert update.applied and update.norm == pytest.approx(expected.item()) and update.norm > 1
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_updates_below_the_resolution_of_bfloat16_are_not_lost():
    weight = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = MasterAdamW([("weight", weight)])
    for step in range(400):
        (weight * -1.0).sum().backward()
        optimizer.step(lr=1e-5)
        if step == 0:
            assert (weight == 1).all()  # too little to be seen in 16 bits (they are 1/128 apart here)
    torch.testing.assert_close(optimizer.state_dict()["master.weight"], torch.full((4, 4), 1.004), rtol=0, atol=1e-5)
    assert (weight == 1 + 2**-7).all()


def test_micro_batches_are_summed_in_float32():
    weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.bfloat16))
    optimizer = MasterAdamW([("weight", weight)])
    for _ in range(513):  # in bfloat16 the sum would stop at 256
        weight.sum().backward()
        assert weight.grad is None
    assert optimizer.gradients()["weight"].item() == 513
    assert optimizer.clip_and_norm(1e9).item() == 513


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, math.nan, math.inf, None])
def test_nothing_to_learn_or_nothing_finite_leaves_everything_as_it_was(dtype, scale):
    model = network(dtype)
    optimizer = MasterAdamW(model.named_parameters(), weight_decay=0.1)
    learn(model)
    optimizer.step(0.01)  # momentum and decay would move the weights now
    before = snapshot(model, optimizer)
    if scale is not None:
        learn(model, seed=1, scale=scale)
    norm = optimizer.clip_and_norm(1.0)
    update = optimizer.step(0.01)
    assert not update.applied
    assert update.status == ("no_gradient" if not scale else "non_finite")
    assert update.norm == norm.item() == 0 if not scale else not math.isfinite(update.norm)
    assert_identical(before, snapshot(model, optimizer))
    learn(model, seed=1)
    assert optimizer.step(0.01).applied  # and the bad gradient is gone


def test_step_without_clipping():
    clipped, plain = network(), network()
    updates = []
    for model in (clipped, plain):
        optimizer = MasterAdamW(model.named_parameters())
        learn(model)
        if model is clipped:
            optimizer.clip_and_norm(1e9)
        updates.append(optimizer.step(0.01))
    assert updates[0] == updates[1]
    assert_identical(clipped.state_dict(), plain.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumes_bit_for_bit(dtype):
    straight = network(dtype)
    optimizer = MasterAdamW(straight.named_parameters(), weight_decay=0.1)
    for seed in range(2):
        learn(straight, seed)
        optimizer.step(0.003)
    resumed = copy.deepcopy(straight)
    for parameter in resumed.parameters():
        parameter.grad = None
    saved = save({name: tensor.contiguous() for name, tensor in optimizer.state_dict().items()})
    continued = MasterAdamW(resumed.named_parameters(), weight_decay=0.1)
    continued.load_state_dict(load(saved))
    for seed in range(2, 4):
        for model, adamw in ((straight, optimizer), (resumed, continued)):
            learn(model, seed)
            adamw.clip_and_norm(1.0)
            adamw.step(0.003)
    assert_identical(snapshot(straight, optimizer), snapshot(resumed, continued))


def test_a_loaded_state_sets_16_bit_weights():
    model, other = network(torch.bfloat16), network(torch.bfloat16)
    optimizer = MasterAdamW(model.named_parameters())
    learn(model)
    optimizer.step(0.1)
    MasterAdamW(other.named_parameters()).load_state_dict(optimizer.state_dict())
    assert_identical(model.state_dict(), other.state_dict())


def test_refuses_a_state_of_something_else():
    model = network(torch.bfloat16)
    optimizer = MasterAdamW(model.named_parameters())
    learn(model)
    optimizer.step(0.1)
    before = snapshot(model, optimizer)
    state = optimizer.state_dict()
    wrong = [
        MasterAdamW(network().named_parameters()).state_dict(),
        {name: tensor for name, tensor in state.items() if name != "master.0.weight"},
        {name: tensor for name, tensor in state.items() if name != "exp_avg.0.weight"},
        state | {"master.0.weight": torch.zeros(2, 2)},
        state | {"exp_avg.9.weight": torch.zeros(2, 2)},
    ]
    for other in wrong:
        with pytest.raises(UserError, match="other parameters"):
            optimizer.load_state_dict(other)
        assert_identical(before, snapshot(model, optimizer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_change_in_place_and_may_become_views_later(dtype):
    model, plain = network(dtype), network(dtype)
    optimizer, reference = (MasterAdamW(module.named_parameters()) for module in (model, plain))
    engine = torch.zeros(20, 7, dtype=dtype)  # a tensor of an inference engine, which holds other weights too
    view = engine[4:7]
    view.copy_(model[2].weight.data)
    model[2].weight.data = view
    for seed in range(3):
        for module, adamw in ((model, optimizer), (plain, reference)):
            learn(module, seed)
            adamw.clip_and_norm(1.0)
            adamw.step(0.01)
    assert model[2].weight.data_ptr() == view.data_ptr()
    assert torch.equal(engine[4:7], plain[2].weight) and not engine[:4].any() and not engine[7:].any()


def test_tied_parameters_once_and_frozen_ones_not_at_all():
    policy = Policy(tiny.build("llama", dtype=torch.bfloat16))
    tied = policy.model.get_input_embeddings().weight
    frozen = policy.model.model.norm.weight.requires_grad_(False)
    before = frozen.clone()
    names = [*policy.model.named_parameters(), ("lm_head.weight", policy.model.lm_head.weight)]
    optimizer = MasterAdamW(names, weight_decay=0.1)
    logprobs = policy.token_logprobs(PackedBatch.build(tiny.sequences()))
    logprobs.sum().backward()
    assert sum(gradient.shape == tied.shape for gradient in optimizer.gradients().values()) == 1
    optimizer.step(0.01)
    assert torch.equal(frozen, before) and not any("norm.weight" == name for name in optimizer.gradients())
    assert policy.model.lm_head.weight is tied
    assert sum(key.startswith("master.") for key in optimizer.state_dict()) == len(names) - 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_bfloat16_gradients_of_micro_batches_add_up(checkpointing):
    """They are the float32 sum of the 16-bit gradients of each backward pass, also when layers are checkpointed."""
    pairs = tiny.sequences()
    policy = Policy(tiny.build("qwen3", dtype=torch.bfloat16), gradient_checkpointing=checkpointing)
    expected: dict[str, torch.Tensor] = {}
    for pair in pairs:
        policy.token_logprobs(PackedBatch.build([pair])).sum().backward()
        for name, gradient in tiny.gradients(policy.model).items():
            expected[name] = expected.get(name, 0) + gradient.float()
    optimizer = MasterAdamW(policy.model.named_parameters())
    for pair in pairs:
        policy.token_logprobs(PackedBatch.build([pair])).sum().backward()
    assert_identical(expected, optimizer.gradients())


def test_vectors_are_not_decayed():
    model = network()
    optimizer = MasterAdamW(model.named_parameters(), weight_decay=0.5)
    before = copy.deepcopy(model.state_dict())
    learn(model)
    optimizer.clip_and_norm(1e-30)  # leaves decay alone to move the weights
    optimizer.step(0.1)
    torch.testing.assert_close(model[0].weight, before["0.weight"] * 0.95)
    torch.testing.assert_close(model[1].weight, before["1.weight"], rtol=0, atol=1e-6)


def test_a_second_optimizer_for_16_bit_weights_does_not_starve_silently():
    model = network(torch.bfloat16)
    optimizers = [MasterAdamW(model.named_parameters()) for _ in range(2)]
    with pytest.raises(RuntimeError, match="same 16-bit parameter"):
        learn(model)
    assert len(optimizers) == 2


def test_needs_something_to_train():
    with pytest.raises(ValueError, match="trainable"):
        MasterAdamW(network().requires_grad_(False).named_parameters())
