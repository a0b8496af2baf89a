import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.algorithm.advantage import joint_advantages
from hacpo_fast.config import AdvantageConfig


def plain_advantages(groups, ratios, learner, config):
    """The reference twin: Eq. 5-7 and the two guards, one prompt and one response after the other."""
    advantages, uniform = [], []
    for group in groups:
        rewards = [reward for _, reward in group]
        n, mean = len(rewards), sum(rewards) / len(rewards)
        std = (sum((r - mean) ** 2 for r in rewards) / max(n - 1, 1)) ** 0.5

        def baseline(agent, group=group, mean=mean, n=n, rewards=rewards):
            if config.uniform_guard and max(rewards) == min(rewards):
                return rewards[0]
            result = mean
            if config.capability_baseline:
                result = sum(r / ratios[agent][source] for source, r in group) / n
            own = [r for source, r in group if source == agent] or rewards
            if config.reward_max_guard and result > config.reward_max:
                result = sum(own) / len(own)
            return result

        for source, reward in group:
            held_against = learner if config.cross == "learner" else source
            advantages.append((reward - baseline(held_against)) / (std + config.eps))
            uniform.append(max(rewards) == min(rewards))
    return advantages, uniform


def flat(groups):
    rows = [(r, p, s) for p, group in enumerate(groups) for s, r in group]
    rewards, prompt, source = zip(*rows, strict=True)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(prompt), torch.tensor(source)


@st.composite
def pools(draw):
    agents = draw(st.integers(1, 4))
    reward = st.sampled_from([0.0, 0.0, 0.3, 1.0])
    group = st.lists(st.tuples(st.integers(0, agents - 1), reward), min_size=1, max_size=6)
    capability = draw(st.lists(st.floats(0.05, 1), min_size=agents, max_size=agents))
    ratios = [[b / a for b in capability] for a in capability]
    return draw(st.lists(group, min_size=1, max_size=5)), ratios, draw(st.integers(0, agents - 1))


@settings(deadline=None)
@given(pools(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["learner", "source"]))
def test_equals_the_plain_twin(pool, capability_baseline, uniform_guard, reward_max_guard, cross):
    groups, ratios, learner = pool
    config = AdvantageConfig(
        cross=cross, capability_baseline=capability_baseline, uniform_guard=uniform_guard,
        reward_max_guard=reward_max_guard,
    )  # fmt: skip
    got = joint_advantages(*flat(groups), torch.tensor(ratios, dtype=torch.float64), learner, config)
    advantages, uniform = plain_advantages(groups, ratios, learner, config)
    # Without the guard, equal rewards divide rounding errors by eps; the tolerance covers that.
    torch.testing.assert_close(got.advantage.tolist(), advantages, rtol=1e-7, atol=1e-8)
    assert got.uniform.tolist() == uniform


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.3, 1.0])
def test_equal_rewards_give_exactly_zero(reward):
    rewards = torch.full((7,), reward, dtype=torch.float64)
    ratios = torch.tensor([[1.0, 7.0], [1 / 7.0, 1.0]], dtype=torch.float64)
    source = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    got = joint_advantages(rewards, torch.zeros(7, dtype=torch.long), source, ratios, 0, AdvantageConfig())
    assert got.advantage.eq(0).all()


def test_naive_is_the_plain_joint_mean_whatever_the_rewards():
    from hacpo_fast.config import AlgorithmConfig
    from hacpo_fast.learner_batch import _weights

    rewards = torch.tensor([4.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    source, prompt = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.long)
    ratios = torch.tensor([[1.0, 0.1], [10.0, 1.0]], dtype=torch.float64)
    got = joint_advantages(rewards, prompt, source, ratios, 0, _weights(AlgorithmConfig(name="naive")))
    assert got.baseline.tolist() == [1.5] * 4


def test_one_agent_is_the_group_advantage_of_gspo():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.25, 0.5], dtype=torch.float64)
    prompt, source = torch.tensor([0, 0, 0, 1, 1, 1]), torch.zeros(6, dtype=torch.long)
    ratios = torch.ones(1, 1, dtype=torch.float64)
    got = joint_advantages(rewards, prompt, source, ratios, 0, AdvantageConfig()).advantage
    for group in (slice(0, 3), slice(3, 6)):
        expected = (rewards[group] - rewards[group].mean()) / (rewards[group].std() + 1e-6)
        torch.testing.assert_close(got[group], expected)
