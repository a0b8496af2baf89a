import pytest
import runs
import torch

from hacpo_fast import memory
from hacpo_fast.agent import read_card
from hacpo_fast.errors import UserError
from hacpo_fast.preparation import prepare

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


@pytest.mark.parametrize("dtype, numbers", [("bfloat16", 12), ("float32", 8)])
def test_an_offloaded_optimiser_is_charged_to_the_host(models, tmp_path, monkeypatch, dtype, numbers):
    def estimate(offload):
        config = runs.settings(
            {"ada": models["ada"]}, tmp_path, training__offload_optimizer=offload, agents__ada__dtype=dtype
        )
        card = read_card("ada", config.agents["ada"])
        return memory.estimate(card, config, torch.device("cuda"), "transformers")

    stays, moves = estimate(False), estimate(True)
    parameters = stays.weights // (2 if dtype == "bfloat16" else 4)
    assert (stays.optimizer, stays.offloaded) == (numbers * parameters, 0)
    assert moves.offloaded == stays.optimizer
    assert moves._replace(offloaded=0, optimizer=0) == stays._replace(optimizer=0)
    # What visits the device is no more than two chunks, and no more than there is.
    monkeypatch.setattr(memory, "CHUNK", 1000)
    assert (moves.optimizer, estimate(True).optimizer) == (stays.optimizer, 2 * 1000 * numbers)
    monkeypatch.setattr(memory, "host_memory", lambda: moves.offloaded)
    with pytest.raises(UserError, match=r"training.offload_optimizer takes .* of the host's memory"):
        memory.check([moves], GIB)
    assert memory.check([stays], GIB) > 0


def test_on_a_cpu_there_is_nowhere_to_offload_to(plan, models, tmp_path):
    assert plan(training__offload_optimizer=True) == plan()
    config = runs.settings(
        {"ada": models["ada"]}, tmp_path, training__offload_optimizer=True, run__profile_steps=[1, 7], run__steps=2
    )
    notes = "\n".join(prepare(config).notes)
    assert "training.offload_optimizer changes nothing on a CPU" in notes
    assert "run.profile_steps: the run ends with step 2, before [7]" in notes


def test_checkpointing_keeps_one_layer_and_the_inputs_of_all(plan, models, tmp_path):
    everything = plan(engine="transformers")[0].activations
    kept = plan(engine="transformers", training__gradient_checkpointing=True)[0].activations
    # 2 layers of width 32 and 48, 512 tokens of 4 bytes: 8 x 32 + 3 x 48 numbers a layer, or its 32 inputs.
    assert everything == 512 * 4 * 2 * (8 * 32 + 3 * 48)
    assert kept == 512 * 4 * (2 * 32 + 8 * 32 + 3 * 48)
