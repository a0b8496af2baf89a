"""Runs jobs in parallel, one process per core, and tells of each that ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple

from hacpo_fast.errors import UserError


class Job(NamedTuple):
    """A call whose result is a file. `function` is imported by the worker."""

    label: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]


def run_jobs(stages: Sequence[Sequence[Job]], workers: int, done: Callable[[Job], None]) -> None:
    """Runs all jobs of a stage before any of the next; a worker serves many jobs, since imports take seconds.

    A job that fails does not keep the others of its stage from running.

    Raises:
        UserError: at the end of the stage, naming the jobs that failed; or as soon as a worker has died.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the workers import torch
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start)
    try:
        for stage in stages:
            failed = []
            futures = {pool.submit(job.function, *job.arguments): job for job in stage}
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise UserError("a worker process died (killed, or out of memory?); the same command goes on")
                if error:
                    failed.append(f"  {futures[future].label}: {type(error).__name__}: {error}")
                else:
                    done(futures[future])
            if failed:
                raise UserError("\n".join([f"{len(failed)} of {len(stage)} jobs failed", *failed]))
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()


def _end_with_parent() -> None:
    """A worker whose parent was killed would otherwise wait for its next job for ever."""
    parent_process().join()
    os._exit(1)
