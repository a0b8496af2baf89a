"""The configurations that come with the project: valid, as published, and as large as they say."""

import json
import re
from pathlib import Path

import pytest
import runs
import torch
from sizes import MODELS

from hacpo_fast import config_file, memory, preparation
from hacpo_fast.agent import ModelCard, read_card
from hacpo_fast.config import AgentConfig
from hacpo_fast.errors import UserError, all_of
from hacpo_fast.train import main

CONFIGS = Path(__file__).parents[1] / "configs"
GIB = 1 << 30
PAPER = {  # Table 5: alpha, delta, delta_step
    "qwen3_4b_qwen3_4b_instruct": (3.0, 0.8, 0.01),
    "qwen3_1.7b_qwen3_4b": (1.0, 0.8, 0.025),
    "qwen3_4b_qwen3_8b": (3.0, 0.8, 0.025),
    "llama3.2_1b_llama3.2_3b": (1.0, 0.9, 0.01),
    "qwen3_1.7b_llama3.2_1b": (1.0, 0.8, 0.025),
    "qwen3_4b_llama3.2_3b": (1.0, 0.8, 0.025),
}


def of_paper(name):
    return CONFIGS / "paper" / f"{name}.yaml"


def needs(config, available):
    cards = [ModelCard(name, agent, MODELS[agent.model], None) for name, agent in config.agents.items()]
    return memory.plan(cards, config, torch.device("cuda"), "vllm", available)


def test_there_is_a_file_for_each_pair_of_the_paper():
    assert {path.stem for path in (CONFIGS / "paper").glob("*.yaml")} == {*PAPER, "common"}


@pytest.mark.parametrize("name", PAPER)
def test_hyperparameters_of_the_paper(name):
    config = config_file.load(of_paper(name))
    algorithm, rollout, training = config.algorithm, config.rollout, config.training
    assert (algorithm.alpha, algorithm.cross_lower, algorithm.cross_lower_step) == PAPER[name]
    assert (algorithm.name, algorithm.own_clip_low, algorithm.own_clip_high) == ("hacpo", 3e-4, 4e-4)
    assert algorithm.capability.window == 5
    assert (rollout.prompts_per_step, rollout.samples_per_prompt) == (128, 8)
    assert (rollout.max_prompt_tokens, rollout.max_response_tokens) == (1024, 4096)
    assert (rollout.temperature, rollout.logprobs, algorithm.kl_coef) == (1.0, "recompute", 1e-3)
    assert (training.minibatch_responses, training.lr) == (64 * 8, 1e-6)
    assert (training.betas, training.weight_decay, training.max_grad_norm) == ((0.9, 0.999), 0.01, 1.0)
    assert (training.schedule, training.warmup_steps, algorithm.minibatch_order) == ("constant", 0, "own_first")
    assert (config.validation.every, config.validation.sampling["greedy"].temperature) == (3, 0.0)
    assert config.run.steps is None  # one epoch
    assert (config.task.name, config.task.split, config.task.holdout) == ("math", "train", 0)
    sizes = [
        re.sub(r"[-_]?(base|instruct.*)$", "", re.split(r"/", agent.model)[1].lower())
        for agent in config.agents.values()
    ]
    assert name.removesuffix("_instruct") == "_".join(
        size.replace("llama-", "llama").replace("-", "_") for size in sizes
    )


@pytest.mark.parametrize("name", PAPER)
def test_files_say_what_memory_they_take(name):
    text = of_paper(name).read_text()
    device, beside, host = map(
        int, re.search(r"at least (\d+) GiB of a GPU, or (\d+) GiB and (\d+) GiB", text).groups()
    )
    least = needs(config_file.load(of_paper(name)), 0)  # caches of one sequence
    needed = memory.check(least, 1 << 60)
    assert needed / GIB == pytest.approx(device, rel=0.03)
    offloading = config_file.validate(config_file.read(of_paper(name), ["training.offload_optimizer=true"]), name)
    left = needs(offloading, 0)
    assert sum(need.offloaded for need in left) / GIB == pytest.approx(host, rel=0.03)
    rest = sum(need.lasting for need in left) + max(need.passing for need in left)
    assert rest / GIB == pytest.approx(beside, rel=0.03)
    with pytest.raises(UserError, match=r"set training\.offload_optimizer=true, which keeps"):
        memory.check(least, needed - 1)


def test_the_configuration_for_one_gpu_fits_into_80_gigabytes():
    config = config_file.load(CONFIGS / "gpu_single.yaml")
    available = int(79.1 * GIB)  # what such a device has free
    planned = needs(config, available)
    assert memory.check(planned, available) < 0.96 * available
    for agent, need in zip(config.agents.values(), planned, strict=True):
        text = MODELS[agent.model]
        per_token = 2 * 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
        assert need.kv_cache / per_token > 128 * 800, "room for the batch at answers of 800 tokens"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def local(tmp_path, models):
    """Overrides that put small local models and data in place of those of a configuration."""
    for i in range(5):
        file = tmp_path / f"MATH/train/algebra/{i}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"problem": f"{i}+1?", "level": "Level 1", "solution": f"$\\boxed{{{i + 1}}}$"}))
    (tmp_path / "math500.jsonl").write_text(json.dumps({"problem": "2+2?", "answer": "4"}) + "\n")

    def overrides(config):
        names = list(config.agents)
        return [
            f"task.source={tmp_path / 'MATH'}", f"validation.task.source={tmp_path / 'math500.jsonl'}",
            *(f"agents.{name}.model={models[tiny]}" for name, tiny in zip(names, ("ada", "bea"), strict=True)),
            "rollout.prompts_per_step=2", "rollout.max_prompt_tokens=128", "rollout.max_response_tokens=16",
            "rollout.engine=transformers", f"run.output={tmp_path / 'out'}",
        ]  # fmt: skip

    return overrides


@pytest.mark.parametrize("path", [*map(of_paper, PAPER), CONFIGS / "gpu_single.yaml"], ids=lambda path: path.stem)
def test_dry_runs_with_other_models_and_data(path, local, monkeypatch, capsys):
    # Seven times the start of its processes would be long; that benchmarks pass it is tested with evaluation.
    monkeypatch.setattr(preparation, "check_reward", lambda *_: [])
    config = config_file.load(path)
    assert main([str(path), "--dry-run", *local(config)]) == 0
    printed = capsys.readouterr().out
    assert "5 training and 1 validation problems of math" in printed
    assert "2 steps of 2 prompts x 8 responses" in printed


def test_everything_that_is_missing_is_named_at_once(monkeypatch, capsys):
    import datasets

    def refuse(name, subset, split):
        raise ConnectionError(f"no way to {name}")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    assert main([str(of_paper("qwen3_1.7b_llama3.2_1b")), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "4 things are missing or wrong" in said
    for named in (
        "hf download DigitalLearningGmbH/MATH-lighteval --repo-type dataset",
        "hf download HuggingFaceH4/MATH-500 --repo-type dataset",
        "task.source=FILE",
        "agents.qwen.model: no model with a tokenizer at 'Qwen/Qwen3-1.7B-Base'",
        "hf download meta-llama/Llama-3.2-1B-Instruct",
        "hf auth login",
    ):
        assert named in said


def test_what_is_missing_for_two_reasons_is_named_once():
    def refuse():
        raise UserError("'datasets' is not installed")

    with pytest.raises(UserError, match=r"^'datasets' is not installed$"):
        all_of([refuse, refuse])


def test_a_model_that_is_not_here_without_the_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    where = (
        r"agents\.a\.model: .* at 'nobody/nothing' \(no such folder, it is not in the hub's cache, and the hub cannot"
    )
    with pytest.raises(UserError, match=where):
        read_card("a", AgentConfig(model="nobody/nothing"))


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def test_files_include_others(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", deep="training: {lr: 1, betas: [0.1, 0.2]}\nrun: {seed: 1}\n")
    write(tmp_path, middle="include: sub/deep.yaml\ntraining: {lr: 2, weight_decay: 3}\n", other="run: {seed: 4}\n")
    top = write(tmp_path, top="include: [middle.yaml, other.yaml]\ntraining: {betas: [0.5, 0.6]}\n")
    assert config_file.read(top, ["training.lr=9"]) == {
        "training": {"lr": 9, "betas": [0.5, 0.6], "weight_decay": 3},
        "run": {"seed": 4},
    }


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": "include: b.yaml", "b": "include: a.yaml"}, "include each other in a circle"),
        ({"a": "include: a.yaml"}, "include each other in a circle"),
        ({"a": "include: bb.yaml", "b": ""}, r"a.yaml: include: .*bb.yaml: no such file; did you mean .*b.yaml\?"),
        ({"a": "include: {b: 1}"}, "a.yaml: include: give the path of a YAML file"),
        ({"a": "include: b.yaml", "b": "run: [1"}, r"a.yaml: include: .*b.yaml: not readable as YAML"),
    ],
)
def test_includes_that_cannot_be(tmp_path, files, said):
    with pytest.raises(UserError, match=said):
        config_file.read(write(tmp_path, **files))
