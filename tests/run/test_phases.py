"""Where a step's time and memory went: parts add up to phases, phases to the total, on a host and beside a device."""

from __future__ import annotations

import time

import pytest
import torch

from hacpo_fast.run import phases as module
from hacpo_fast.run.peak_memory import PeakMemory
from hacpo_fast.run.phases import Phases, timed
from hacpo_fast.run.sinks import scalars


@pytest.fixture
def clock(monkeypatch):
    """Time passes only when told to."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_parts_add_up_to_their_phase_and_phases_to_the_total(clock):
    phases = Phases()
    clock(0.5)
    with phases("rollout", "ada"):
        clock(4)
    with phases("learn", "ada"):
        clock(1)
        with timed("forward"):
            clock(2)
        with timed("forward"):
            clock(3)
        with timed("backward"):
            clock(10)
    with phases("learn", "bea"), timed("forward"):
        clock(7)
    assert phases.seconds() == {"rollout": 4, "learn": 23, "other": 0.5, "total": 27.5}
    parts = {"learn/forward": 5, "learn/backward": 10, "learn/other": 1}
    assert phases.seconds_of("ada") == {"rollout": 4, "learn": 16} | parts  # a phase without parts has no "other"
    assert phases.seconds_of("bea") == {"learn": 7, "learn/forward": 7, "learn/other": 0}


def test_the_outermost_part_counts_and_an_error_ends_it(clock):
    @timed("score")
    def score():
        with timed("forward"):
            clock(3)
        raise ValueError

    phases = Phases()
    with pytest.raises(ValueError), phases("learn"):
        score()
    with phases("learn"), timed("forward"):
        clock(1)
    assert phases.seconds_of("") == {"learn": 4, "learn/score": 3, "learn/forward": 1, "learn/other": 0}


def test_outside_a_phase_a_part_is_nothing(clock):
    with timed("forward"):
        clock(1)
    assert Phases().seconds() == {"other": 0, "total": 0}


def test_on_a_gpu_parts_take_the_streams_time(clock, monkeypatch):
    """The host queues 1 s of work in no time; what the host does meanwhile costs nothing, what it does later does."""
    stream = [0.0]  # how far the device's work reaches

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, _):
            stream[0] = max(stream[0], time.perf_counter())
            self.time = stream[0]

        def elapsed_time(self, end):
            return (end.time - self.time) * 1000

    def work(seconds):
        stream[0] = max(stream[0], time.perf_counter()) + seconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: clock(stream[0] - time.perf_counter()))
    monkeypatch.setattr(module, "PeakMemory", lambda device: PeakMemory(torch.device("cpu")))
    phases = Phases("cuda")
    with phases("learn", "ada"):
        with timed("forward"):
            work(1)
        with timed("pack"):
            clock(0.75)  # hidden
        with timed("backward"):
            work(2)
        with timed("measure"):
            clock(3.25)  # longer than what was queued, by 1 s
    assert phases.seconds_of("ada") == {
        "learn": 4,
        **{"learn/forward": 1, "learn/pack": 0, "learn/backward": 2, "learn/measure": 1, "learn/other": 0},
    }


def test_peak_memory_by_phase():
    phases = Phases()
    with phases("rollout", "ada"):
        torch.ones(64 << 20, dtype=torch.uint8)  # freed at once
    with phases("rollout", "bea"):
        pass
    with phases("learn", "ada"):
        torch.ones(128 << 20, dtype=torch.uint8)
    if not phases.peaks():
        pytest.fail("the peak of this process cannot be reset: see hacpo_fast/run/peak_memory.py")
    ada, bea = phases.peaks("ada"), phases.peaks("bea")
    assert ada["rollout"] - bea["rollout"] > 60 << 20
    assert 60 << 20 < ada["learn"] - ada["rollout"] < 70 << 20
    assert phases.peaks() == {"rollout": ada["rollout"], "learn": ada["learn"]}


def test_a_peak_that_cannot_be_reset_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr("hacpo_fast.run.peak_memory.CLEAR_REFS", tmp_path / "nowhere" / "clear_refs")
    phases = Phases()
    with phases("learn", "ada"):
        pass
    assert phases.peaks() == phases.peaks("ada") == {}


def test_curves_of_time_and_memory():
    record = {
        "step": 3,
        "time": {"learn": 2.0},
        "peak_memory": {"learn": 5},
        "agents": {"ada": {"updates": 7, "time": {"learn/forward": 1.5}, "peak_memory": {"learn": 4}}},
    }
    points = {(point.tag, point.value, point.x) for point in scalars(record, {})}
    of_the_run = {("time/learn", 2.0, 3), ("peak_memory/learn", 5, 3)}
    assert points == of_the_run | {("ada/time/learn/forward", 1.5, 7), ("ada/peak_memory/learn", 4, 7)}
