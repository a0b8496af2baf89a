import pytest
import runs
import torch

from hacpo_fast import memory
from hacpo_fast.agent import read_card
from hacpo_fast.errors import UserError

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def plan(models, tmp_path):
    def make(available=GIB, engine="vllm", **changes):
        config = runs.settings({name: models[name] for name in ("ada", "bea")}, tmp_path, **changes)
        cards = [read_card(name, settings) for name, settings in config.agents.items()]
        return memory.plan(cards, config, CPU, engine, available)

    return make


def test_a_shared_engine_needs_no_weights_of_its_own(plan):
    for weights in ("auto", "shared"):
        assert [need.engine_weights for need in plan(rollout__weights=weights)] == [0, 0]
    for weights in ("copy", "reload"):
        needs = plan(rollout__weights=weights)
        assert [need.engine_weights for need in needs] == [need.weights for need in needs]
    halved = plan(rollout__dtype="bfloat16")
    assert [need.engine_weights for need in halved] == [need.weights // 2 for need in halved]
    assert all(need.engine_weights == need.kv_cache == 0 for need in plan(engine="transformers"))


def test_the_cache_holds_what_is_sampled_at_once(plan):
    # 2 layers, keys and values of one head of 32 numbers of 4 bytes; 60 tokens of a sequence take a block of 128.
    block = 128 * 2 * 2 * 32 * 4
    ada, _ = plan(rollout__batch_sequences=10)
    assert ada.kv_cache == (10 + 2) * block
    assert plan(rollout__batch_sequences=10, rollout__dtype="bfloat16")[0].kv_cache == (10 + 2) * block // 2
    ada, bea = plan(rollout__kv_cache_gb=0.25, agents__bea__kv_cache_gb=0.125)
    assert (ada.kv_cache, bea.kv_cache) == (GIB // 4, GIB // 8)
    assert ada.lasting - ada.kv_cache == plan(engine="transformers")[0].lasting
    with pytest.raises(UserError, match=r"agents.ada: a KV cache of .* does not hold one sequence.*kv_cache_gb"):
        plan(agents__ada__kv_cache_gb=1e-5)


def test_a_cache_that_is_not_set_takes_a_share_of_what_is_left(plan):
    available = 64 << 20
    needs = plan(available, rollout__batch_sequences=4096)
    wanted = plan(64 * GIB, rollout__batch_sequences=4096)
    assert all(small.kv_cache < large.kv_cache for small, large in zip(needs, wanted, strict=True))
    assert memory.check(needs, available) > 0.9 * available
    assert memory.check(wanted, 64 * GIB) < 8 * GIB


def test_what_cannot_fit_is_refused_with_the_setting_to_lower(plan):
    with pytest.raises(UserError, match=r"the device has 1.0 GiB; lower kv_cache_gb"):
        memory.check(plan(rollout__kv_cache_gb=1), GIB)
    needs = [need._replace(weights=GIB, engine_weights=GIB, kv_cache=0) for need in plan()]
    with pytest.raises(UserError, match=r"set rollout.weights=shared"):
        memory.check(needs, 3 * GIB)
    with pytest.raises(UserError, match=r"lower training.token_budget"):
        memory.check([need._replace(activations=2 * GIB) for need in plan(rollout__batch_sequences=1)], GIB)


def test_who_only_answers_needs_no_optimiser(plan, models, tmp_path):
    config = runs.settings({"ada": models["ada"]}, tmp_path)
    card = read_card("ada", config.agents["ada"])
    (need,) = memory.plan([card], config, CPU, "vllm", GIB, trained=False)
    assert need.gradients == need.optimizer == need.activations == 0 < need.kv_cache
