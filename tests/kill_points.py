"""python tests/kill_points.py CONFIG FOLDER KILLS SEED: trains in FOLDER/0, FOLDER/1 ... and kills each time and again.

A run counts what it does to its folder: files that it opens to write, renames, removals, folders, links, lines of its
logs. At a random one of these it dies by SIGKILL: just before, a few milliseconds after, or in the middle of the line.
Then the same command goes on with what is left, until the run has ended; new runs follow until there were KILLS kills.
Prints what was being done, as JSON: [[run, kind, file], ...].

Every attempt is a fork of this process, which has everything imported and nothing else done.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

# What only the forks use is imported here too, once for all of them.
from transformers import LlamaForCausalLM, Qwen3ForCausalLM  # noqa: F401

from hacpo_fast import train, trainer  # noqa: F401
from hacpo_fast.run import curves, jsonl, output  # noqa: F401

FEW, MANY = 8, 100
"""Deeds that an attempt may do, at most: those of its start alone, or two or three steps with their checkpoints."""


class Doom:
    """Counts deeds in `folder` and kills this process at number `last`; `report` gets what it was."""

    def __init__(self, folder: Path, last: int, delay: float, report: int):
        self.folder, self.left, self.delay, self.report = str(folder), last, delay, report

    def watch(self) -> None:
        sys.addaudithook(self._audit)
        right = jsonl.JsonlWriter.write

        def write(writer: jsonl.JsonlWriter, record: dict) -> None:
            if self.left == 1:
                line = json.dumps(record, default=str)
                writer._file.write(line[: random.Random(len(line)).randrange(len(line))].encode())
            self._deed("line", writer._file.name)
            right(writer, record)

        jsonl.JsonlWriter.write = write

    def _audit(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, mode, flags = arguments
            changes = set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)
            if changes and isinstance(path, str | os.PathLike):
                self._deed("open", path)
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "shutil.rmtree"):
            self._deed(event, arguments[1] if event == "os.symlink" else arguments[0])

    def _deed(self, kind: str, path: str | os.PathLike) -> None:
        path = os.fspath(path)
        inside = path.startswith(self.folder) or not path.startswith("/")  # removals name files from their folder
        if not inside or threading.current_thread() is not threading.main_thread():
            return
        self.left -= 1
        if self.left == 0:
            os.write(self.report, json.dumps([kind, path.removeprefix(self.folder)]).encode())
            if self.delay and kind != "line":
                threading.Thread(target=lambda: (time.sleep(self.delay), os.kill(os.getpid(), signal.SIGKILL))).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)


def attempt(config: str, folder: Path, last: int, delay: float) -> tuple[int, list | None]:
    """(wait status, what was being done when it was killed) of one process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        Doom(folder, last, delay, writer).watch()
        curves.draw_curves = lambda *_: None  # it takes longer than the run
        code = 70
        try:
            code = train.main([config, f"run.output={folder}", "run.resume=auto"])
        finally:
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        deed = pipe.read()
    return status, json.loads(deed) if deed else None


def main(config: str, folder: str, kills: int, seed: int) -> int:
    draw, done, number = random.Random(seed), [], 0
    while len(done) < kills:
        place = Path(folder) / str(number)
        while True:
            last = draw.randint(1, draw.choice((FEW, MANY))) if len(done) < kills else 10**9
            status, deed = attempt(config, place, last, draw.choice((0, 0, draw.uniform(0, 0.02))))
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                done.append([number, *deed])
            elif status == 0:
                break
            else:
                print(f"after {done}: the run in {place} ended with wait status {status}", file=sys.stderr)
                return 1
        number += 1
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
