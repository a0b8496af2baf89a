"""Rewards run outside the trainer, with a time limit: one that raises, hangs or dies costs one sample."""

from __future__ import annotations

import math
import pickle
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hacpo_fast.tasks.problems import Problem
from hacpo_fast.tasks.reward_process import RewardProcess
from hacpo_fast.tasks.rewards import RewardSpec, resolve_reward

if TYPE_CHECKING:
    from hacpo_fast.config import TaskConfig

MAX_CHUNK = 32
"""Items that a process gets at once: enough to hide the way there and back."""


class RewardResult(NamedTuple):
    """value: the reward, finite; 0.0 where `error` says what went wrong. seconds: how long the check took."""

    value: float
    error: str | None
    seconds: float


class RewardPool:
    """`workers` processes that share the checking of responses; each check may take `timeout` seconds.

    A context manager; `close` ends the processes. Every process has a thread that hands it chunks of the queue and
    knows, from the results that come back one by one, which item it is at. A process that is late or dead is replaced,
    that item gets 0.0, and the items behind it go back to the front of the queue. A process that runs out of memory is
    replaced too, but what filled it may be a leak: the item gets 0.0 only if it fills a fresh one by itself.
    """

    def __init__(
        self, spec: RewardSpec, workers: int = 2, timeout: float = 10.0, memory_gb: float | None = None
    ) -> None:
        """Loads the reward in every process; each may then allocate `memory_gb` GiB more (None: no limit).

        Raises RewardStartError (a UserError) where loading fails.
        """
        self._spec, self._timeout, self._memory_gb = spec, timeout, memory_gb
        self._changed = threading.Condition()  # guards all below
        self._queue: deque[_Item] = deque()
        self._open: set[_Batch] = set()
        self._closed = False
        self._failure: Exception | None = None
        self._processes: list[RewardProcess] = []
        try:
            for _ in range(workers):
                self._processes.append(self._start())
            for process in self._processes:
                process.wait_until_ready()
        except BaseException:
            for process in self._processes:
                process.end()
            raise
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"reward-{slot}", daemon=True)
            for slot in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def score(self, answers: Sequence[tuple[str, Problem]]) -> list[RewardResult]:
        """The results of (response, problem) pairs, in their order."""
        return self.submit(answers).result()

    def submit(self, answers: Sequence[tuple[str, Problem]]) -> Future[list[RewardResult]]:
        """Starts scoring and returns at once; `.result()` waits. Equal responses to a problem are checked once.

        The future raises RewardStartError where a process had to be replaced and the reward could not be loaded again.
        """
        batch = _Batch(answers)
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            if self._failure:
                raise self._failure
            if batch.items:
                self._open.add(batch)
                self._queue.extend(batch.items)
                self._changed.notify_all()
        return batch.future

    def close(self) -> None:
        """Ends all processes. What has no result by then never gets one: its future raises RuntimeError."""
        with self._changed:
            self._closed = True
            self._abandon(RuntimeError("the pool was closed before the result was there"))
            self._changed.notify_all()
            for process in self._processes:
                process.hang_up()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, slot: int) -> None:
        """The life of one thread: chunks of the queue, until the pool is closed."""
        try:
            while chunk := self._take():
                self._run(slot, chunk)
        except Exception as error:  # nobody waits for this thread, but somebody does for its results
            with self._changed:
                self._failure = error
                self._abandon(error)
        finally:
            self._processes[slot].end(patience=1.0)

    def _take(self) -> list[_Item]:
        """The next items for one process, waiting for some; none once the pool is closed.

        Chunks shrink as the queue does, so that slow items at its end are spread over all processes.
        """
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            size = min(MAX_CHUNK, math.ceil(len(self._queue) / (2 * len(self._processes))))
            return [self._queue.popleft() for _ in range(size)]

    def _run(self, slot: int, chunk: list[_Item]) -> None:
        """Has a process check `chunk`, or as much of it as it survives."""
        process = self._processes[slot]
        if not process.alive:  # it died after its last result: no item of this chunk is to blame
            process = self._replace(slot)
        sent = again = False
        for number, item in enumerate(chunk):
            try:
                if not sent:
                    process.send([one.payload for one in chunk], self._timeout)
                    sent = True
                fresh, answer = process.fresh, process.receive_result(self._timeout)
                result, survived = RewardResult(*answer[:3]), not answer.out_of_memory
                again = answer.out_of_memory and not fresh
            except TimeoutError:
                result, survived = RewardResult(0.0, f"took longer than {self._timeout:g} s", self._timeout), False
            except EOFError as error:
                result, survived = RewardResult(0.0, str(error), 0.0), False
            with self._changed:
                if not again:
                    self._finish(item, result)
                if survived:
                    continue
                if self._closed:
                    return
                self._queue.extendleft(reversed(chunk[number if again else number + 1 :]))
                self._changed.notify_all()
            self._replace(slot)
            return

    def _replace(self, slot: int) -> RewardProcess:
        self._processes[slot].end()
        process = self._start()
        with self._changed:
            self._processes[slot] = process
            if self._closed:
                process.hang_up()
        process.wait_until_ready()
        return process

    def _start(self) -> RewardProcess:
        return RewardProcess(self._spec, self._timeout, self._memory_gb)

    def _finish(self, item: _Item, result: RewardResult) -> None:
        batch = item.batch
        for place in item.places:
            batch.results[place] = result
        batch.missing -= 1
        if batch.missing == 0 and batch in self._open:
            self._open.remove(batch)
            batch.future.set_result(batch.results)

    def _abandon(self, error: Exception) -> None:
        self._queue.clear()
        for batch in self._open:
            batch.future.set_exception(error)
        self._open.clear()


class _Batch:
    """What one `submit` asked for. results: filled in by place; missing: items without a result."""

    def __init__(self, answers: Sequence[tuple[str, Problem]]) -> None:
        self.future: Future[list[RewardResult]] = Future()
        self.future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self.results: list[RewardResult | None] = [None] * len(answers)
        places: dict[tuple[str, str], list[int]] = {}
        for place, (response, problem) in enumerate(answers):
            places.setdefault((problem.id, response), []).append(place)
        self.items = [
            _Item(self, pickle.dumps((response, problem.answer, problem.row)), same)
            for same in places.values()
            for response, problem in [answers[same[0]]]
        ]
        self.missing = len(self.items)
        if not self.items:
            self.future.set_result([])


@dataclass(frozen=True, slots=True)
class _Item:
    """One check: payload: pickled arguments of the reward. places: where its result goes in the batch."""

    batch: _Batch
    payload: bytes
    places: list[int]


def open_rewards(task: TaskConfig) -> RewardPool:
    """The reward of `task`, with its time limit, in as many processes as it asks for."""
    return RewardPool(resolve_reward(task), task.reward_workers, task.reward_timeout, task.reward_memory_gb)
