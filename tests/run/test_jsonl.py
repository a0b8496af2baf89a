from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.errors import UserError
from hacpo_fast.run.jsonl import JsonlWriter, read_jsonl, strict
from hacpo_fast.run.rollout_log import RolloutLog, RolloutSample

HOSTILE = "a\n\x00\x1b[2J\x9b31m\u202e\ud800 你好 \u2028 \"quoted\" \\ {'x': NaN}"


def append(path, *records):
    writer = JsonlWriter(path)
    for record in records:
        writer.write(record)
    writer.close()


def test_nan_and_infinity_become_null_and_foreign_scalars_numbers():
    given_ = {
        "a": math.nan,
        "b": [math.inf, -math.inf, 1.5],
        "c": np.float32(0.5),
        "d": torch.tensor(math.nan),
        3: True,
    }
    assert strict(given_) == {"a": None, "b": [None, None, 1.5], "c": 0.5, "d": None, "3": True}


def test_records_are_there_at_once(tmp_path):
    writer = JsonlWriter(tmp_path / "deep" / "x.jsonl")
    writer.write({"step": 1})
    assert read_jsonl(tmp_path / "deep" / "x.jsonl") == [{"step": 1}]
    writer.close()


@pytest.mark.parametrize("cut", range(1, len('{"step": 2, "text": "b"}') + 1))
def test_a_file_cut_anywhere_in_its_last_line_stays_readable_and_appendable(tmp_path, cut):
    path = tmp_path / "x.jsonl"
    whole, torn = '{"step": 1}\n', '{"step": 2, "text": "b"}'[:cut]
    path.write_text(whole + torn)
    kept = [{"step": 1}] + ([json.loads(torn)] if torn.endswith("}") else [])
    assert read_jsonl(path) == kept
    append(path, {"step": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [*kept, {"step": 3}]


def test_an_empty_file_and_zeros_after_a_power_cut(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"")
    assert read_jsonl(path) == []
    path.write_bytes(b'{"step": 1}\n\0\0\0\0')
    assert read_jsonl(path) == [{"step": 1}]
    append(path, {"step": 2})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


def test_damage_in_the_middle_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match="line 2: not JSON"):
        read_jsonl(path)


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters()))
def test_any_text_comes_back_as_it_was_and_the_file_is_plain_ascii(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "x.jsonl"
    append(path, {"text": text})
    assert read_jsonl(path) == [{"text": text}]
    assert path.read_bytes().isascii()


def test_rollouts_go_on_after_a_crash(tmp_path):
    sample = RolloutSample(
        3, "small", "2 + 3?", HOSTILE, math.nan, "ValueError: no", {"small": 0.5, "large": -1.0}, True
    )
    with RolloutLog(tmp_path) as log:
        log.write([sample])
    with (tmp_path / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 4, "ag')
    with RolloutLog(tmp_path) as log:
        log.write([RolloutSample(4, "large", "2 + 3?", "5", 1.0)])
    first, second = map(json.loads, (tmp_path / "rollouts.jsonl").read_text().splitlines())
    assert first == {
        "step": 3,
        "agent": "small",
        "prompt": "2 + 3?",
        "response": HOSTILE,
        "reward": None,
        "error": "ValueError: no",
        "advantages": {"small": 0.5, "large": -1.0},
        "truncated": True,
        "dropped": False,
    }
    assert (second["step"], second["error"], second["advantages"], second["truncated"]) == (4, None, {}, False)
    assert not {"\x1b", "\x9b", "\u202e"} & set((tmp_path / "rollouts.jsonl").read_text())
