"""One stage of a comparison of task queues, with Leasehold's Python package on a folder in the layout `journal`.

    contestant.py init | enqueue N | bulk N | worker | watch | trickle N MS FIRST | sleeper SEQ SECONDS

The program that compares starts a process per stage, in every queue the same way, with BENCH_DIR (a folder), BENCH_CONCURRENCY and
BENCH_MODE in the environment. `leasehold-bench contestant` is the same for Rust. A task appends a line to the file `marks` when it
starts: number, time and process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from leasehold import NewTask, Queue, Worker, connect

FOLDER = Path(os.environ["BENCH_DIR"])
STORE = FOLDER / "q"
IS_TUNED = os.environ.get("BENCH_MODE") == "tuned"
WATCH_EVERY_SECS = 0.02


def new_input(seq: int, sleep: float = 0) -> dict[str, Any]:
    """Input of a task, about 100 bytes as JSON."""
    return {"seq": seq, "sleep": sleep, "pad": "x" * 66}


def say(**line: object) -> None:
    """Prints a line for the program that compares."""
    print(json.dumps(line), flush=True)


async def unfinished(queue: Queue) -> int:
    """Tasks that are not final. Also opens the connection to the broker, before anything is timed."""
    stats = await queue.stats()
    return stats.due + stats.scheduled + stats.running


async def enqueue(queue: Queue, tasks: int) -> None:
    """Submits tasks one by one."""
    began = time.perf_counter()
    for seq in range(tasks):
        await queue.submit("bench", new_input(seq))
    say(n=tasks, seconds=time.perf_counter() - began)


async def bulk(queue: Queue, tasks: int) -> None:
    """Submits tasks in bulk."""
    inputs = [new_input(seq) for seq in range(tasks)]
    began = time.perf_counter()
    await queue.submit_many(NewTask(task_type="bench", input=task_input) for task_input in inputs)
    say(n=tasks, seconds=time.perf_counter() - began, unfinished=await unfinished(queue))


async def work(queue: Queue) -> None:
    """Runs tasks until SIGTERM."""
    marks = os.open(FOLDER / "marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    worker = Worker(queue, concurrency=int(os.environ.get("BENCH_CONCURRENCY", "8")), lease_secs=10 if IS_TUNED else 60)

    @worker.task("bench")
    async def bench(_: Any, task_input: dict[str, Any]) -> None:
        os.write(marks, b"%d %d %d\n" % (task_input["seq"], time.time_ns(), os.getpid()))
        if task_input["sleep"]:
            await asyncio.sleep(task_input["sleep"])

    await worker.run()


async def watch(queue: Queue) -> None:
    """Prints the number of unfinished tasks until there are none."""
    say(ready=True, unfinished=await unfinished(queue))
    left = 1
    while left:
        left = await unfinished(queue)
        say(t=time.time(), unfinished=left)
        await asyncio.sleep(WATCH_EVERY_SECS)


async def trickle(queue: Queue, tasks: int, every_ms: float, first: int) -> None:
    """Submits a task every few milliseconds."""
    submits, durations = [], []
    due = time.monotonic()
    for seq in range(first, first + tasks):
        due += every_ms / 1000
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        at, began = time.time_ns(), time.perf_counter_ns()
        await queue.submit("bench", new_input(seq))
        durations.append(time.perf_counter_ns() - began)
        submits.append(at)
    say(submits=submits, submit_ns=durations)


async def main(verb: str, *args: str) -> None:
    """Runs the stage of a verb."""
    if verb == "init":
        subprocess.run([sys.executable, "-m", "leasehold", "init", "--layout", "journal", "--store", str(STORE)], check=True, stdout=subprocess.DEVNULL)
        return
    async with await connect(STORE) as queue:
        await unfinished(queue)
        match verb, args:
            case "enqueue", [tasks]:
                await enqueue(queue, int(tasks))
            case "bulk", [tasks]:
                await bulk(queue, int(tasks))
            case "worker", []:
                await work(queue)
            case "watch", []:
                await watch(queue)
            case "trickle", [tasks, every_ms, first]:
                await trickle(queue, int(tasks), float(every_ms), int(first))
            case "sleeper", [seq, seconds]:
                await queue.submit("bench", new_input(int(seq), float(seconds)))
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
