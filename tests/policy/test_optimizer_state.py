"""AdamW with masters and moments in the host's memory: the same bits, in any order that streams allow."""

from __future__ import annotations

import copy
import random
from functools import partial

import pytest
import torch
from torch import nn

from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.policy.optimizer_state import ALIGNMENT, MASTER, Lane, Offloaded

SMALL = 16  # numbers in a chunk: most parameters lie in several


class LazyLane(Lane):
    """A stream that does nothing until somebody waits for it, or by chance."""

    draw = random.Random(0)

    def __init__(self, device, current=False):
        self.queue, self.done, self.given = [], 0, 0
        self.eager = current  # the update itself is done as the host asks for it, once what it waits for is there

    def do(self, work):
        self._give(work)

    def mark(self):
        return self, self.given

    def after(self, mark):
        if mark is not None:
            lane, place = mark
            self._give(lambda: lane.run(place))

    def finish(self):
        self.run(self.given)

    def run(self, place):
        while self.done < place:
            self.done += 1
            self.queue[self.done - 1]()

    def _give(self, work):
        self.queue.append(work)
        self.given += 1
        if self.eager or self.draw.random() < 0.2:
            self.run(self.given)


def network(dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 9), nn.Linear(9, 3)).to(dtype)
    if dtype == torch.bfloat16:
        model[1].float()  # as some models keep their norms
    return model


def learn(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for index, parameter in enumerate(model.parameters()):
        if (index + seed) % 5:  # not every parameter has a gradient in every update
            (parameter * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)).sum().backward()


def train(model: nn.Module, optimizer: MasterAdamW, seeds) -> None:
    for seed in seeds:
        learn(model, seed)
        optimizer.clip_and_norm(1.0)
        assert optimizer.step(0.01).applied


def assert_same(model, optimizer, other_model, other_optimizer) -> None:
    one, other = dict(model.named_parameters()), dict(other_model.named_parameters())
    one, other = one | optimizer.state_dict(), other | other_optimizer.state_dict()
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("lane", [Lane, LazyLane])
@pytest.mark.parametrize("chunk", [SMALL, 1 << 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_wherever_the_state_lives(dtype, chunk, lane):
    models = network(dtype), network(dtype)
    states = {}, {"state": partial(Offloaded, chunk=chunk, lane=lane)}
    optimizers = [
        MasterAdamW(model.named_parameters(), weight_decay=0.1, **state)
        for model, state in zip(models, states, strict=True)
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, range(6))
    assert_same(models[0], optimizers[0], models[1], optimizers[1])


def test_streams_that_are_not_waited_for_would_be_noticed():
    class Forgetful(LazyLane):
        def after(self, mark):
            pass

    models = network(torch.bfloat16), network(torch.bfloat16)
    plain = MasterAdamW(models[0].named_parameters())
    broken = MasterAdamW(models[1].named_parameters(), state=partial(Offloaded, chunk=SMALL, lane=Forgetful))
    train(models[0], plain, range(3))
    train(models[1], broken, range(3))
    with pytest.raises(AssertionError):
        assert_same(models[0], plain, models[1], broken)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("before, after", [("resident", "offloaded"), ("offloaded", "resident")])
def test_a_run_goes_on_with_its_state_elsewhere(dtype, before, after):
    kinds = {"resident": {}, "offloaded": {"state": partial(Offloaded, chunk=SMALL)}}
    straight = network(dtype)
    optimizer = MasterAdamW(straight.named_parameters(), **kinds[before])
    train(straight, optimizer, range(2))
    resumed = copy.deepcopy(straight)
    continued = MasterAdamW(resumed.named_parameters(), **kinds[after])
    train(resumed, continued, range(5, 7))  # is to leave no trace
    continued.load_state_dict({key: tensor.clone() for key, tensor in optimizer.state_dict().items()})
    with torch.no_grad():
        for mine, other in zip(resumed.parameters(), straight.parameters(), strict=True):
            mine.copy_(other)
    train(straight, optimizer, range(2, 4))
    train(resumed, continued, range(2, 4))
    assert_same(straight, optimizer, resumed, continued)


def test_parameters_may_become_views_of_an_engine():
    models = network(torch.bfloat16), network(torch.bfloat16)
    optimizers = [
        MasterAdamW(models[0].named_parameters()),
        MasterAdamW(models[1].named_parameters(), state=partial(Offloaded, chunk=SMALL)),
    ]
    engine = torch.zeros(20, 7, dtype=torch.bfloat16)
    view = engine[4:13]
    view.copy_(models[1][2].weight.data)
    models[1][2].weight.data = view
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, range(3))
    assert torch.equal(engine[4:13], models[0][2].weight) and not engine[:4].any() and not engine[13:].any()


def test_chunks_hold_everything_once_and_masters_of_16_bit_weights_only():
    model = network(torch.bfloat16)
    parameters = dict(model.named_parameters())
    rounded = {name: p for name, p in parameters.items() if p.dtype == torch.bfloat16}
    state = Offloaded(parameters, rounded, chunk=SMALL)
    sizes = {kind: sum(map(len, chunks)) for kind, chunks in state._host.items()}
    total, kept = (sum(p.numel() for p in each.values()) for each in (parameters, rounded))
    assert total <= sizes["exp_avg"] == sizes["exp_avg_sq"] < total + ALIGNMENT * len(parameters)
    assert kept <= sizes[MASTER] < min(sizes["exp_avg"], kept + ALIGNMENT * len(rounded))
    for name, parameter in rounded.items():
        assert torch.equal(state.tensors(name)[MASTER], parameter.float())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_on_a_gpu(dtype):
    models = network(dtype).cuda(), network(dtype).cuda()
    plain = MasterAdamW(models[0].named_parameters(), weight_decay=0.1)
    moved = MasterAdamW(models[1].named_parameters(), weight_decay=0.1, state=partial(Offloaded, chunk=SMALL))
    for step in range(20):
        for model, optimizer in zip(models, (plain, moved), strict=True):
            for parameter in model.parameters():
                generator = torch.Generator("cuda").manual_seed(step)
                values = torch.randn(parameter.shape, device="cuda", generator=generator)
                (parameter * values).sum().backward()
            optimizer.clip_and_norm(1.0)
            assert optimizer.step(0.01).applied
    state, other = plain.state_dict(), moved.state_dict()
    assert all(torch.equal(state[key].cpu(), other[key].cpu()) for key in state)
    host = {key: tensor for key, tensor in other.items() if not key.startswith("step.")}
    assert all(tensor.device.type == "cpu" for tensor in host.values())
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
