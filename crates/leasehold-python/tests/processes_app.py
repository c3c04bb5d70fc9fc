"""Application of `test_processes.py`: its handlers run in processes, which import this module."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from leasehold import Context, Leasehold, Permanent, Snooze

app = Leasehold(durability="os")
RESOURCES: list[str] = []


@app.lifespan
def resources() -> Iterator[None]:
    RESOURCES.append("open")
    yield
    if (path := os.environ.get("TEST_LIFESPAN")) is not None:
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")


@app.middleware
def surround(ctx: Context) -> Iterator[None]:
    RESOURCES.append("middleware")
    yield


@app.task(executor="process")
def burn(number: int) -> tuple[int, int]:
    total = 0
    for each in range(2_000):
        total += each * number
    return os.getpid(), total


@app.task(executor="process")
def use_context(ctx: Context, word: str) -> str:
    ctx.progress({"percent": 50})
    path = ctx.directory / "result.txt"
    path.write_text(word)
    ctx.publish("result", path)
    return f"{ctx.attempt} {ctx.epoch} {ctx.task.task_type} {sorted(set(RESOURCES))}"


class Odd(Exception):
    """An exception that cannot be pickled in both directions."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@app.task(executor="process", max_attempts=1)
def ends(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "value":
            raise ValueError("bad luck")
        case "permanent":
            raise Permanent("hopeless")
        case "odd":
            raise Odd(1, 2)
        case "system":
            raise SystemExit(5)
        case "output":
            return object()  # type: ignore[return-value]


@app.task(executor="process")
def naps(ctx: Context) -> int:
    if ctx.epoch == 1:
        raise Snooze(0.1)
    return ctx.epoch


@app.task(executor="process")
def wait_for(path: str, started: str) -> int:
    Path(started).write_text(str(os.getpid()))
    while not Path(path).exists():
        time.sleep(0.01)
    return threading.active_count()


@app.task(executor="process")
def stops(ctx: Context, started: str) -> None:
    Path(started).write_text(str(os.getpid()))
    while True:
        ctx.raise_if_cancelled()
        time.sleep(0.01)


@app.task(executor="process")
def deaf(started: str) -> None:
    Path(started).write_text(str(os.getpid()))
    while True:
        pass
