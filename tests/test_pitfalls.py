"""Faults that users of other trainers met and that no other file here is about; tests/README.md lists them all."""

import json

import numpy as np
import pytest
import runs
import tiny

from hacpo_fast.agent import read_card
from hacpo_fast.config import AgentConfig
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.preparation import prepare
from hacpo_fast.rollouts.engine import Sample
from hacpo_fast.rollouts.records import record_rollouts
from hacpo_fast.rollouts.transformers_engine import TransformersEngine
from hacpo_fast.rollouts.views import own_view
from hacpo_fast.run.place import Place
from hacpo_fast.train import run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "ada": tiny.write_model(folder / "ada", tiny.byte_tokenizer(), "llama"),
        "bea": tiny.write_model(folder / "bea", tiny.byte_tokenizer(merges=40, bos=True, pad_is_eos=True), "qwen3"),
    }


def test_prompts_too_long_for_one_agent_are_left_out_for_all_and_counted(models, tmp_path):
    rows = [{"prompt": "1+1=" + "1" * (100 if i % 10 == 0 else i % 9), "answer": str(i)} for i in range(45)]
    rows = [{**row, "prompt": f"{i}:{row['prompt']}"} for i, row in enumerate(rows)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = runs.settings(models, tmp_path, task__name=str(tmp_path / "long.jsonl"), task__holdout=0, run__steps=1)
    prepared = prepare(config)
    assert len(prepared.train) == 40 and max(len(problem.prompt) for problem in prepared.train) < 48
    assert "5 of 45 training problems left out: prompt too long (or empty) for an agent" in prepared.notes
    assert all(
        len(tokens) == 45 - 5 for tokens in ([prepared.prompt_tokens[a][p.id] for p in prepared.train] for a in models)
    )
    assert run(config, Place(tmp_path / "run")) == 0


def test_an_end_token_that_is_also_the_padding_counts(models):
    """Nothing is masked by the id of padding: the end of a response is scored, and packing adds no padding."""
    codec = read_card("bea", AgentConfig(model=str(models["bea"]))).codec
    assert codec.tokenizer.pad_token_id == codec.tokenizer.eos_token_id == codec.eos_id
    ids = np.array([40, 41, codec.eos_id], dtype=np.int64)
    (rollout,) = record_rollouts(0, codec, [[Sample(ids, np.float32([-1, -2, -6]), True)]])
    view = own_view(rollout, score_eos=True)
    assert view.token_ids.tolist() == ids.tolist() and view.source_mean_logprob == pytest.approx(-3)
    packed = PackedBatch.build([(ids, ids), (ids[:1], ids)], "cpu")
    assert packed.response_cu_seqlens.diff().tolist() == [3, 3]  # both ends are predicted


def test_weights_that_do_not_reach_the_engine_end_the_run(models, tmp_path, monkeypatch):
    calls = []

    def sync(self):
        calls.append(self)
        if len(calls) > 3:  # in the second step
            raise RuntimeError("broken off in the middle")

    monkeypatch.setattr(TransformersEngine, "sync", sync)
    with pytest.raises(RuntimeError, match="broken off"):
        run(runs.settings(models, tmp_path, run__steps=3), Place(tmp_path / "run"))
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert saved.name == "failed-in-step-2"
