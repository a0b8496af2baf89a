import math

import pytest

from hacpo_fast.compare.statistics import T_QUANTILES, estimate, paired


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 30])
def test_quantiles_enclose_95_percent_of_students_t(degrees):
    """The density integrated by Simpson's rule over x = tan(u), which makes the tails short."""

    def density(x):
        norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
        return math.exp(norm - (degrees + 1) / 2 * math.log1p(x * x / degrees))

    end, parts = math.atan(T_QUANTILES[degrees - 1]), 2000
    width = 2 * end / parts
    total = 0.0
    for i in range(parts + 1):
        u = -end + i * width
        total += (1 if i in (0, parts) else 4 if i % 2 else 2) * density(math.tan(u)) / math.cos(u) ** 2
    assert total * width / 3 == pytest.approx(0.95, abs=6e-5)  # quantiles have three decimals
    assert sorted(T_QUANTILES, reverse=True) == list(T_QUANTILES)


def test_an_interval_by_hand():
    # 2, 4, 9: mean 5, deviations -3, -1, 4, variance (9 + 1 + 16) / 2 = 13, standard error sqrt(13 / 3)
    mean, half, n = estimate([2.0, 4.0, 9.0])
    assert (mean, n) == (5.0, 3)
    assert half == pytest.approx(4.303 * 2.0816659994661326)
    assert estimate([0.5, 0.5]).half == 0.0
    alone = estimate([0.25])
    assert alone.mean == 0.25 and math.isnan(alone.half)
    assert estimate(list(range(40))).half == pytest.approx(2.042 * math.sqrt(40 * 41 / 12 / 40))


def test_differences_are_taken_seed_by_seed():
    difference = paired({0: 0.7, 1: 0.5, 2: 0.9, 5: 0.1}, {2: 0.6, 0: 0.6, 1: 0.3, 4: 0.9})
    # 0.1, 0.2, 0.3: mean 0.2, standard deviation 0.1
    assert difference.mean == pytest.approx(0.2) and difference.n == 3
    assert difference.half == pytest.approx(4.303 * 0.1 / math.sqrt(3))
    assert paired({0: 1.0}, {1: 1.0}) is None
