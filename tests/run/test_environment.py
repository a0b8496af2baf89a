from __future__ import annotations

import json
import sys

import torch

from hacpo_fast.run.environment import note_environment, read_environment


def test_every_process_adds_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "hacpo_fast.train", "mine.yaml"])
    note_environment(tmp_path, 0, torch.device("cpu"), "transformers")
    note_environment(tmp_path, 25, torch.device("cpu"), "vllm")
    first, second = read_environment(tmp_path)
    assert (first["after_step"], second["after_step"]) == (0, 25)
    assert (first["engine"], second["engine"]) == ("transformers", "vllm")
    assert first["command"] == ["python", "-m", "hacpo_fast.train", "mine.yaml"]
    assert first["packages"]["torch"] == torch.__version__ and first["threads"] == torch.get_num_threads()
    assert first["device"] == "cpu" and first["device_memory_gb"] is None and first["cores"] >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]


def test_what_cannot_be_read_is_empty(tmp_path):
    assert read_environment(tmp_path) == []
    for text in ("{", "3", json.dumps({"a": 1})):
        (tmp_path / "environment.json").write_text(text)
        assert read_environment(tmp_path) == []
