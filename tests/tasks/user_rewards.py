"""Rewards as users write them, the bad ones included. Loaded by reward processes, never by the tests themselves."""

import ctypes
import os
import signal
import subprocess
import sys
import time

print("noise at import")  # must not end up between results


def length(response, answer, row):
    return len(response)


def ask(response, answer, row):
    """Does what the response says."""
    with open(row["log"], "a") as log:
        log.write(response + "\n")
    match response.split(":")[0]:
        case "hang":
            time.sleep(1e6)
        case "hang deep":  # in C, without ever coming back to the interpreter
            ctypes.PyDLL(None).pause()
        case "hang with child":
            row["child"] = subprocess.Popen(["sleep", "1000000"])
            with open(row["log"], "a") as log:
                log.write(f"pid {row['child'].pid}\n")
            time.sleep(1e6)
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "sys.exit":
            sys.exit("enough")
        case "raise":
            raise ValueError("no such luck")
        case "raise badly":
            raise Unprintable
        case "raise at length":
            raise ValueError("x" * 10_000_000)
        case "babble":
            to_the_trainer(b'{"value": 1}\n' + b"[1, 2\n")
        case "flood":
            to_the_trainer(b"x" * 10_000_000)
        case "forge":
            to_the_trainer(b'["", 1.0, null, 0.0, false]\n')
        case "forge nan":
            to_the_trainer(b'["", NaN, null, 0.0, false]\n')
        case "close":
            os.closerange(3, 64)
        case "fork":
            os.fork()  # and both give a result
        case "fork and hang":
            if os.fork() == 0:
                time.sleep(1e6)
        case "fork and exit":
            if os.fork():
                os._exit(0)
        case "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1e6)
        case "fill memory":
            full = []
            while True:
                full.append(bytearray(1 << 24))
        case "leak":
            leaked.append(bytearray(1 << 25))
        case "gigabytes":
            for _ in range(2048):
                os.write(1, b"x" * (1 << 20))
                os.write(2, b"x" * (1 << 20))
        case "noise":
            print("[1.0, null, 0.0]", flush=True)
            os.write(1, b"[1.0, null, 0.0]\n" * 1000)
            os.write(2, b"[1.0, null, 0.0]\n" * 1000)
            return 0.25
    return 0.5


leaked = []


def to_the_trainer(text):
    """Writes into the connection that results go through."""
    for descriptor in os.listdir("/proc/self/fd"):
        if os.path.islink(link := f"/proc/self/fd/{descriptor}") and "socket" in os.readlink(link):
            os.write(int(descriptor), text)


class Hostile:
    """Whatever is asked of it, it does harm: ends the process, raises, or answers something else."""

    def __init__(self, how):
        self.how = how

    def do(self, *_):
        match self.how:
            case "exit":
                os._exit(4)
            case "raise":
                raise SystemExit("no")
            case "text":
                return "1.0"
            case "nan":
                return float("nan")
            case "number":
                return 0.75
            case "memory":
                return "x" * (1 << 40)

    __float__ = __repr__ = __str__ = __reduce__ = __reduce_ex__ = __bool__ = __len__ = __eq__ = __hash__ = do

    def __del__(self):
        raise RuntimeError("even now")


class HostileText(str):
    __repr__ = __str__ = __getitem__ = __len__ = Hostile("raise").do


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


def returns(response, answer, row):
    """Returns what the response says, as Python."""
    return eval(response)


def echo(response, answer, row):
    if row["fails"]:
        raise ValueError(response)
    return row["value"]


def spoil(response, answer, row):
    """Changes what it was given, and tells what it found."""
    found = row["list"] == [1, (2, 3)] and row["numbers"] == {1: "one"}
    row["list"].append(4)
    row["numbers"].clear()
    return found


def loaded(response, answer, row):
    """How many of the heavy packages this process has imported."""
    return sum(name in sys.modules for name in ("torch", "transformers", "pydantic", "datasets", "numpy"))


def pid(response, answer, row):
    return os.getpid()


def without_row(response, answer):
    return 1.0


def with_option(response, answer, row, *, factor):
    return factor


async def later(response, answer, row):
    return 1.0
