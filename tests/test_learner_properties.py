"""Properties of a learner's updates over pools of every shape."""

import math

import numpy as np
import pytest
import runs
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.capability import capability_ratios
from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.learner import Learner
from hacpo_fast.learner_batch import assemble
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.preparation import prepare
from hacpo_fast.rollouts.engine import Sample
from hacpo_fast.rollouts.records import RolloutPool, record_rollouts
from hacpo_fast.scoring import score

NAMES = ("ada", "bea", "cy", "dan")


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    """Four loaded agents, their start weights, and the preparation of their run."""
    folder = tmp_path_factory.mktemp("crew")
    models = runs.write_models(folder / "models")
    models = {"ada": models["ada"], "bea": models["bea"], "cy": models["cy"], "dan": models["ada"]}
    prepared = prepare(runs.settings(models, folder))
    agents = [Agent(i, card, prepared.config, prepared.device) for i, card in enumerate(prepared.cards)]
    starts = [{name: tensor.clone() for name, tensor in agent.policy.model.state_dict().items()} for agent in agents]
    return prepared, agents, starts


@st.composite
def pools(draw):
    """What a step could yield: who answered how often, how long, for what reward; and settings that matter to it."""
    agents = draw(st.integers(1, 4))
    prompts, samples = draw(st.integers(1, 3)), draw(st.integers(2 if agents == 1 else 1, 3))
    count = agents * prompts * samples
    some = st.sampled_from((0.0, 0.0, 0.5, 1.0, 1.5))
    rewards = draw(st.one_of(some.map(lambda one: [one] * count), st.lists(some, min_size=count, max_size=count)))
    return {
        "agents": agents, "prompts": prompts, "samples": samples, "rewards": rewards,
        "lengths": draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)),
        "seed": draw(st.integers(0, 99)),
        "algorithm": draw(st.sampled_from(("hacpo", "hacpo", "naive", "gspo", "grpo") if samples > 1 else ("hacpo",))),
        "order": draw(st.sampled_from(("own_first", "mixed"))),
        "minibatch": draw(st.integers(1, count)),
        "score_first": draw(st.sampled_from(("auto", "always"))),
        "budget": draw(st.sampled_from((1, 60, 1000))),
        "capability": draw(st.lists(st.floats(1e-8, 1), min_size=agents, max_size=agents)),
    }  # fmt: skip


def sampled(rng, codec, length):
    """A response of so many tokens of an agent, at times ended by its end token; log-probs are made up."""
    token_ids = rng.integers(0, len(codec.tokenizer), length)
    ended = length > 0 and bool(rng.integers(2))
    if ended:
        token_ids[-1] = codec.eos_id
    return Sample(token_ids, rng.uniform(-6, -0.01, length).astype(np.float32), ended)


def make_pool(crew, case):
    prepared, agents, _ = crew
    rng, problems = np.random.default_rng(case["seed"]), prepared.train[: case["prompts"]]
    lengths, rewards, rollouts = iter(case["lengths"]), iter(case["rewards"]), []
    for agent in agents[: case["agents"]]:
        groups = [
            [sampled(rng, agent.codec, next(lengths)) for _ in range(case["samples"])] for _ in range(case["prompts"])
        ]
        rollouts += record_rollouts(agent.index, agent.codec, groups)
    rollouts = [
        rollout.__class__(**{**rollout.__dict__, "reward": reward})
        for rollout, reward in zip(rollouts, rewards, strict=True)
    ]
    return RolloutPool(problems, NAMES[: case["agents"]], rollouts)


def configured(config, case):
    algorithm = config.algorithm.model_copy(update={"name": case["algorithm"], "minibatch_order": case["order"]})
    training = config.training.model_copy(
        update={
            "minibatch_responses": case["minibatch"], "token_budget": case["budget"], "weight_decay": 0.1,
            "score_first": case["score_first"],
        }
    )  # fmt: skip
    # The log-probs are made up, so they differ from the policy's.
    rollout = config.rollout.model_copy(update={"max_mismatch": 1e3})
    return config.model_copy(update={"algorithm": algorithm, "training": training, "rollout": rollout})


def plain_loss(learner, minibatch):
    """-(sum of J over the responses) / (their number), response by response in float64 from log-probs alone."""
    batch, total = learner.batch, 0.0
    settings = loss_arguments(learner.algorithm, minibatch.updates_done)
    for row in minibatch.rows:
        view = batch.views[row]
        advantage = batch.advantages[row]
        if len(view.token_ids) == 0:
            continue
        (logprobs,) = score(learner.agent.policy, [batch.sequence(row)], learner.agent.temperature, 1000)
        logprobs = logprobs.astype(np.float64)
        low, high = 1 - settings["own_clip_low"], 1 + settings["own_clip_high"]
        if learner.algorithm.name == "grpo":
            ratios = np.exp(np.clip(logprobs - view.source_logprobs, -10, 10))
            total += np.minimum(ratios * advantage, np.clip(ratios, low, high) * advantage).mean()
            continue
        ratio = math.exp(min(max(logprobs.mean() - batch.source_mean_logprobs[row], -10), 10))
        if batch.own_objective[row]:
            total += min(ratio * advantage, min(max(ratio, low), high) * advantage)
        else:
            clipped = min(max(ratio, settings["cross_clip_lower"]), settings["cross_clip_upper"])
            total += clipped ** (1 + settings["alpha"]) * batch.capability_ratio[row] * advantage
    return -total / len(minibatch.rows)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=pools())
def test_updates_of_any_pool(crew, case):
    prepared, agents, starts = crew
    config, pool = configured(prepared.config, case), make_pool(crew, case)
    ratios = capability_ratios(torch.tensor(case["capability"], dtype=torch.float64), config.algorithm.capability)
    for agent, start in list(zip(agents, starts, strict=True))[: case["agents"]]:
        agent.policy.model.load_state_dict(start)
        agent.optimizer = MasterAdamW(agent.policy.model.named_parameters(), weight_decay=0.1)
        tokens = [prepared.prompt_tokens[agent.name][problem.id] for problem in pool.problems]
        batch = assemble(pool, agent.index, agent.codec, tokens, agent.context, ratios, config.algorithm, True)
        learner = Learner(agent, batch, config, lr=1e-3, rng=np.random.default_rng(case["seed"]))
        updates = follow(learner)
        before = agent.updates
        learner.learn()
        assert sorted(row for update in updates for row in update["rows"]) == list(range(len(batch.prompt)))
        for update in updates:
            assert math.isfinite(update["loss"])
            assert update["loss"] == pytest.approx(update["plain"], rel=1e-4, abs=1e-5)
            assert update["applied"] or update["untouched"]
            if not learner.passes.needed[update["rows"]].any():
                assert not update["applied"] and update["loss"] == 0
        if len(set(case["rewards"])) == 1:
            assert not learner.passes.needed.any()
            assert all(torch.equal(now, start[name]) for name, now in agent.policy.model.state_dict().items())
            assert agent.optimizer.state_dict() == {}
        assert learner.skipped_updates == 0
        assert agent.updates - before == sum(update["applied"] for update in updates)
        assert agent.optimizer.weights_are_finite()


def follow(learner):
    """Notes of every update: its rows, its loss and the plain one of that moment, and whether it changed anything."""
    updates, right = [], learner._update
    add, losses = learner.passes.accumulator.add, []

    def note(name, values, weight=1.0):
        if name == "loss":
            losses.append(float(values))
        add(name, values, weight)

    learner.passes.accumulator.add = note

    def snapshot():
        state = learner.agent.optimizer.state_dict()
        weights = learner.agent.policy.model.state_dict()
        return {name: tensor.clone() for name, tensor in [*state.items(), *weights.items()]}

    def update(minibatch, scores_first):
        plain, before = plain_loss(learner, minibatch), snapshot()
        applied = right(minibatch, scores_first)
        after = snapshot()
        same = before.keys() == after.keys() and all(torch.equal(after[name], before[name]) for name in before)
        updates.append({
            "rows": minibatch.rows.tolist(), "plain": plain, "loss": losses[-1], "applied": applied, "untouched": same,
        })  # fmt: skip
        return applied

    learner._update = update
    return updates
