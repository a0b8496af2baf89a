"""One weight sync into vLLM, by way: what every training step pays before its rollout.

pytest bench/bench_weights.py. `bytes` counts what is moved.
"""

import pytest
import served_models
import torch

from hacpo_fast.policy.engine_views import engine_views
from hacpo_fast.policy.policy import Policy
from hacpo_fast.policy.weight_sync import CopiedWeights, ReloadedWeights, SharedWeights, checkpoint_weights
from hacpo_fast.rollouts import vllm_library
from hacpo_fast.rollouts.vllm_engine import VllmEngine, VllmSettings

pytestmark = pytest.mark.skipif(not vllm_library.installed(), reason="vLLM is not installed")


@pytest.fixture(scope="module", params=["plain", "packed"])
def pair(request, tmp_path_factory):
    """A policy and its engine, whose weights are plain matrices or, as vLLM's CPU build has them, packed."""
    folder = served_models.write(tmp_path_factory.mktemp("m") / "m", "116M")
    policy = Policy.load(str(folder), device="cuda" if torch.cuda.is_available() else "cpu")
    settings = VllmSettings(str(folder), [0], torch.float32, policy.device, 256, 8, 64 << 20)
    engine = VllmEngine(settings._replace(unpacked=request.param == "plain"))
    yield request.param, policy.model, engine
    engine.close()


def one_by_one(model, engine):
    """As trainers do that hand vLLM one parameter after another."""

    def sync():
        for named in model.named_parameters():  # a tied output head alone is refused
            engine.load([named])

    return sync


WAYS = {
    "copy": lambda model, engine: CopiedWeights(model, engine_views(model, engine.module)),
    "load_all": lambda model, engine: lambda: engine.load(checkpoint_weights(model, engine.module)),
    "load_one_by_one": one_by_one,
    "reload": lambda model, engine: ReloadedWeights(model, engine.module, engine.reload),
    "shared": lambda model, engine: SharedWeights(model, engine_views(model, engine.module)),
}


@pytest.mark.parametrize("way", WAYS)
def bench_sync(benchmark, pair, way):
    layout, model, engine = pair
    if layout == "packed" and way != "reload":
        pytest.skip("packed weights can only be reloaded")
    engine.synchronise = WAYS[way](model, engine)
    size = sum(parameter.nbytes for parameter in model.parameters())
    benchmark.extra_info["bytes"] = 0 if way == "shared" else size
    benchmark.pedantic(engine.sync, rounds=5, warmup_rounds=1)
