"""One reward process, seen from the trainer."""

import contextlib
import json
import math
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.rewards import RewardSpec

START_SECONDS = 300.0
"""How long loading a reward may take: it may import large packages from a slow disk."""

MAX_LINE = 1 << 16
"""Bytes of one message from a process; more means that it no longer speaks the protocol."""

_NONSENSE = "the process wrote something that is not a result into its connection"


class Answer(NamedTuple):
    """What a process says about one item. out_of_memory: the limit was reached; the process is of no more use."""

    value: float
    error: str | None
    seconds: float
    out_of_memory: bool


class RewardStartError(UserError, RuntimeError):
    """A reward that cannot be loaded: nothing can be scored."""


class RewardProcess:
    """A process with a reward loaded, that gets items and gives back one message for each, in order.

    It is the leader of its own session: Ctrl-C in the terminal does not reach it, and programs that a reward started
    end with it. It ends by itself when the trainer is gone.
    """

    def __init__(self, spec: RewardSpec, timeout: float, memory_gb: float | None = None) -> None:
        """Starts it; `wait_until_ready` tells whether that went well.

        timeout: seconds that one item may take. memory_gb: GiB that it may allocate once the reward is loaded.
        """
        self.fresh = True  # has answered nothing yet
        self._connection, theirs = socket.socketpair()
        self._received = bytearray()
        self._awaited: deque[str] = deque()
        self._log = tempfile.TemporaryFile()
        # What this interpreter can import, the process can. Hashes are the same in every run, since the order of sets
        # decides how symbolic mathematics proceeds.
        search = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "hacpo_fast.tasks.reward_worker",
                    str(theirs.fileno()), str(timeout), str(memory_gb or math.inf),
                ],
                env={**os.environ, "PYTHONPATH": search, "PYTHONHASHSEED": "0"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,
            )  # fmt: skip
        with contextlib.suppress(OSError):  # it is dead already; wait_until_ready will say so
            self._write(pickle.dumps(spec), START_SECONDS)

    def wait_until_ready(self) -> None:
        """Raises RewardStartError, with what the process said, where the reward could not be loaded."""
        try:
            answer = self.receive(START_SECONDS)
        except TimeoutError:
            raise RewardStartError(f"the reward was not loaded within {START_SECONDS:g} s") from None
        except EOFError as error:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()[-2000:]
            raise RewardStartError(f"a reward process ended while it started: {error}\n{said}".strip()) from None
        if "error" in answer:
            raise RewardStartError(answer["error"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, items: Sequence[bytes], timeout: float) -> None:
        """Gives it `items` to check. Raises TimeoutError or EOFError where it does not take them.

        Each has a random word to be sent back with its result: what a reward writes into the connection by itself
        cannot be taken for the result of anything.
        """
        self._awaited = deque(secrets.token_hex(8) for _ in items)
        try:
            self._write(pickle.dumps(list(zip(self._awaited, items, strict=True))), timeout)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError(self._ending()) from None

    def receive_result(self, timeout: float) -> Answer:
        """About the next item. Raises what `receive` raises."""
        awaited = self._awaited.popleft()
        match self.receive(timeout):
            case [word, float(value), str() | None as error, float(seconds), bool(out_of_memory)] if (
                word == awaited and math.isfinite(value)
            ):
                self.fresh = False
                return Answer(value, error, seconds, out_of_memory)
        raise EOFError(_NONSENSE)

    def receive(self, timeout: float) -> Any:
        """Its next message. Raises TimeoutError after `timeout` seconds and, saying why, EOFError if none will come."""
        deadline = time.monotonic() + timeout
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > MAX_LINE:
                raise EOFError(_NONSENSE)
            self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                more = self._connection.recv(1 << 16)
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError(self._ending())
            self._received += more
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            return json.loads(line)
        except ValueError:
            raise EOFError(_NONSENSE) from None

    def hang_up(self) -> None:
        """Ends the conversation, also from another thread: an idle process leaves, and a waiting `receive` returns."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self, patience: float = 0.0) -> None:
        """Ends the process and all it started; `patience`: seconds that it has to leave by itself after `hang_up`."""
        if patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._log.close()

    def _write(self, frame: bytes, timeout: float) -> None:
        self._connection.settimeout(timeout)
        self._connection.sendall(len(frame).to_bytes(8, "big") + frame)

    def _ending(self) -> str:
        """How the process ended: its connection is closed, so it has, or is about to."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the process closed its connection"
        if code >= 0:
            return f"the process exited with code {code}"
        return f"the process was killed by {signal.Signals(-code).name}"
