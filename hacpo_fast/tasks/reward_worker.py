"""The process that runs a reward: `python -m hacpo_fast.tasks.reward_worker FD SECONDS GIB`, started by RewardProcess.

FD is a socket. In come frames: a length (8 bytes) and a pickle, first of the RewardSpec, then of lists of
(word, pickled item), where an item is (response, answer, row). Pickles keep what JSON would bend: tuples and number
keys, which some rewards rely on; they come from the trainer, which is trusted. Out go lines of JSON and nothing else,
because this process runs other people's code and the trainer must not trust it: {} or {"error": ...} once the reward is
loaded, then [word, value, error, seconds, out of memory] for each item.
"""

import contextlib
import json
import math
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.rewards import Reward, load_reward

LARGEST = 1e9
"""A reward beyond this is a mistake, and its square would drown all others of its group."""

MAX_ERROR = 1000
"""Characters of an error text that are sent back."""

GRACE = 5.0
"""Seconds past all deadlines after which a process ends itself, should nobody be left to end it."""


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # programs that a reward starts must not keep it open, and neither must forks:
    os.register_at_fork(after_in_child=lambda: os.close(connection.detach()))  # two would answer for one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what Ctrl-C means is decided by the trainer
    _be_expendable()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    frames = _frames(connection)
    try:
        reward = load_reward(pickle.loads(next(frames)))
    except UserError as error:
        return _send(connection, {"error": str(error)[:MAX_ERROR]})
    except BaseException as error:
        return _send(connection, {"error": f"the reward cannot be loaded: {describe(error)}"})
    _send(connection, {})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # start-up may complain to the trainer's log, single checks may not
    _limit_memory(float(sys.argv[3]))
    for frame in frames:
        items = pickle.loads(frame)
        # The trainer ends a check that takes too long. If the trainer is gone, the kernel does, by this timer, even
        # where the reward never comes back to the interpreter.
        signal.setitimer(signal.ITIMER_REAL, len(items) * float(sys.argv[2]) + GRACE)
        for word, item in items:
            _send(connection, [word, *check(reward, item)])
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end_with(trainer: int) -> None:
    """Ends this process, and what a reward has started in its group, as soon as the trainer is gone."""
    while os.getppid() == trainer:
        time.sleep(1)
    os.killpg(os.getpgid(0), signal.SIGKILL)  # a group of its own, made with this process


def check(reward: Reward, item: bytes) -> tuple[float, str | None, float, bool]:
    """(value, error, seconds, out of memory) of one pickled (response, answer, row).

    Whatever goes wrong is an error text and 0.0.
    """
    start = time.perf_counter()
    value, error, out_of_memory = 0.0, None, False
    try:
        found = reward(*pickle.loads(item))
        if not hasattr(found, "__float__"):  # has: numbers, also those of NumPy and torch. Has not: None, text, lists
            error = f"returned {_short(found)}, which is not a number"
        elif abs(number := float(found)) <= LARGEST:
            value = number
        else:
            error = f"returned {number}" + (f", beyond {LARGEST:g}" if math.isfinite(number) else "")
    except MemoryError as caught:
        traceback.clear_frames(caught.__traceback__)  # they hold what filled it
        error, out_of_memory = f"{describe(caught)}: more than task.reward_memory_gb allows", True
    except BaseException as caught:  # also sys.exit() in a reward: one sample's fault, not the process's end
        error = describe(caught)
    return value, error and error[:MAX_ERROR], time.perf_counter() - start, out_of_memory


def describe(error: BaseException) -> str:
    """`ValueError: what it says (file.py, line 3)`."""
    said = traceback.format_exception_only(error)[-1].strip()[:MAX_ERROR]  # survives a __str__ that raises
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})" if trace else ""
    return said + place


def _short(value: Any) -> str:
    if isinstance(value, str):
        value = value[:80]  # it may be as long as memory allows
    shown = repr(value) if isinstance(value, (str, int, type(None))) else f"a {type(value).__name__}"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _frames(connection: socket.socket) -> Iterable[bytes]:
    """Frames as they come, until the other side closes the connection."""
    with connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
        while len(head := stream.read(8)) == 8:
            frame = stream.read(int.from_bytes(head, "big"))
            yield frame


def _send(connection: socket.socket, message: Any) -> None:
    connection.sendall(json.dumps(message).encode("ascii") + b"\n")


def _be_expendable() -> None:
    """When memory runs out, the kernel shall take this process and not the trainer; and no core files, please."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def _limit_memory(gigabytes: float) -> None:
    """Allocations beyond what this process has by now fail after `gigabytes` GiB more.

    RLIMIT_DATA counts memory that can be written. RLIMIT_AS would also count what is merely reserved, of which CUDA,
    Node and Java take more than there is. Children inherit the limit, each for itself.
    """
    if math.isinf(gigabytes):
        return
    with contextlib.suppress(OSError, ValueError):  # no Linux, or a lower limit from outside
        pages = int(open("/proc/self/statm").read().split()[5])  # data and stack
        limit = pages * resource.getpagesize() + int(gigabytes * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main()
