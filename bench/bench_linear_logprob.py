"""linear_logprob beside its peers: all tokens live, and the quarter that is when most responses were clipped."""

from __future__ import annotations

import pytest
import torch
from measure import PHASES, SIZES, measure, projection
from peers import LOGPROB, chosen_route


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", LOGPROB)
def test_linear_logprob(benchmark, name, size, phase):
    benchmark.group = f"linear_logprob {size} {phase}"
    hidden, weight, targets = projection(size)
    with chosen_route(name):
        measure(benchmark, phase, lambda: LOGPROB[name](hidden, weight, targets), [hidden, weight])


@pytest.mark.parametrize("size", SIZES[-1:], ids=str)
@pytest.mark.parametrize("name", LOGPROB)
def test_a_quarter_of_the_rows_is_live(benchmark, name, size):
    benchmark.group = f"linear_logprob {size} backward, a quarter live"
    hidden, weight, targets = projection(size)
    upstream = (torch.arange(size.tokens, device=hidden.device) < size.tokens // 4).float()
    with chosen_route(name):
        measure(benchmark, "backward", lambda: LOGPROB[name](hidden, weight, targets) * upstream, [hidden, weight])
