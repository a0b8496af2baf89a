"""Any text and any number, through the reward processes into rollouts.jsonl and back."""

import math
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hacpo_fast.run.jsonl import read_jsonl
from hacpo_fast.run.rollout_log import RolloutLog, RolloutSample
from hacpo_fast.tasks.reward_worker import LARGEST, MAX_ERROR

TEXTS = st.text(st.characters(), max_size=200) | st.sampled_from(
    ["", "\0", "\ud800", "\udfff\ud800", "\u2028\u2029\x85\r\n", "\U0010ffff", '{"a": 1}\n', "\x1b[2J\u202e"]
)
REWARDS = st.floats() | st.integers() | st.booleans() | st.none() | st.text(max_size=5)


@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), value=REWARDS, fails=st.booleans())
@example(texts=["x" * (1 << 20), "\ud800" * (1 << 18), "\0" * (1 << 20)], value=0.5, fails=False)
@example(texts=["x" * (1 << 20), "\ud800" * (1 << 18), "\0" * (1 << 20)], value=0.5, fails=True)
def test_texts_and_rewards_survive(pool_of, problem, texts, value, fails):
    asked = problem("x", value=value, fails=fails)
    results = pool_of("user:echo").score([(text, asked) for text in texts])
    number = isinstance(value, int | float) and abs(value) <= LARGEST and not math.isnan(value)
    for result in results:
        if number and not fails:
            assert result[:2] == (float(value), None)
        else:
            assert result.value == 0.0 and result.error and len(result.error) <= MAX_ERROR
    samples = [
        RolloutSample(1, "ada", text, text, result.value, result.error)
        for text, result in zip(texts, results, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        with RolloutLog(folder) as log:
            log.write(samples)
        content = (Path(folder) / "rollouts.jsonl").read_bytes()
        read = read_jsonl(Path(folder) / "rollouts.jsonl")
    assert content.isascii() and content.count(b"\n") == len(samples)
    assert [(one["response"], one["reward"], one["error"]) for one in read] == [
        (sample.response, sample.reward, sample.error) for sample in samples
    ]
