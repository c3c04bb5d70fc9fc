"""No-op tasks from one Python process: Leasehold on a folder (durability "os") against RQ with a local Redis.

    pip install rq==2.12.0 wheels/leasehold-*.whl             # a wheel built with --release
    python bench/throughput.py --redis /usr/bin/redis-server [--tasks 2000] [--rounds 5] [--dir PATH]

Rounds of all sides alternate, so that other load on the machine affects all alike; a ratio is the median of the ratios of
neighbouring rounds. Redis keeps everything in memory (no snapshots, no log) and is reached through a Unix socket, its
fastest configuration. RQ is measured with its default worker, which forks for every job, and with `SimpleWorker`, which
does not and is therefore not protected against a job that crashes.

The share of Python is the CPU time of the threads that run Python, out of that of the whole process.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import leasehold


def nothing(*_: object) -> None:
    """The task."""


class Round:
    """Measurements of one side in one round."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.submitting = self.working = self.in_python = self.in_process = 0.0

    @property
    def submitted_per_sec(self) -> float:
        return self.tasks / self.submitting

    @property
    def worked_per_sec(self) -> float:
        return self.tasks / self.working

    @property
    def whole_per_sec(self) -> float:
        return self.tasks / (self.submitting + self.working)


async def leasehold_round(folder: Path, tasks: int, concurrency: int, sync: bool) -> Round:
    done = Round(tasks)
    in_threads: dict[int, float] = {}
    async with await leasehold.connect(folder, durability="os") as queue:
        begun = time.perf_counter()
        new_tasks = [leasehold.NewTask(task_type="nothing") for _ in range(tasks)]
        results = await queue.submit_many(new_tasks)
        done.submitting = time.perf_counter() - begun
        assert all(isinstance(result, leasehold.Submitted) for result in results)
        worker = leasehold.Worker(queue, "bench", concurrency=concurrency)
        if sync:

            @worker.task("nothing")
            def handler(ctx: leasehold.Context, input: None) -> None:
                in_threads[threading.get_ident()] = time.thread_time()
        else:

            @worker.task("nothing")
            async def async_handler(ctx: leasehold.Context, input: None) -> None:
                pass

        begun, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        running = asyncio.create_task(worker.run())
        # Until the last result is recorded: a draining worker keeps scanning for a while before it ends.
        while (counts := worker.counts()) is None or counts.completed < tasks:
            await asyncio.sleep(0.01)
        done.working = time.perf_counter() - begun
        done.in_python = time.thread_time() - thread + sum(in_threads.values())
        done.in_process = time.process_time() - process
        worker.stop()
        await running
    return done


def rq_round(socket: Path, tasks: int, forks: bool) -> Round:
    import redis
    import rq

    connection = redis.Redis(unix_socket_path=str(socket))
    connection.flushall()
    queue = rq.Queue("bench", connection=connection)
    done = Round(tasks)
    begun = time.perf_counter()
    queue.enqueue_many([rq.Queue.prepare_data(print, args=("",), kwargs={"end": ""}) for _ in range(tasks)])
    done.submitting = time.perf_counter() - begun
    kind = rq.Worker if forks else rq.SimpleWorker
    worker = kind([queue], connection=connection)
    begun, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    worker.work(burst=True, logging_level="ERROR")
    done.working = time.perf_counter() - begun
    done.in_python = time.thread_time() - thread
    done.in_process = time.process_time() - process
    assert len(queue) == 0 and queue.finished_job_registry.count == tasks
    return done


def start_redis(binary: str, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    socket = folder / "redis.sock"
    command = [binary, "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    while not socket.exists():
        assert server.poll() is None, "redis did not start"
        time.sleep(0.01)
    return server, socket


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redis", default="redis-server")
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--forked-tasks", type=int, default=200, help="for the worker that forks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--dir", type=Path, default=None, help="directory in which to create the queue's folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)

    with tempfile.TemporaryDirectory(dir=args.dir) as scratch:
        server, socket = start_redis(args.redis, Path(scratch))
        try:
            numbers = iter(range(10_000))

            def ours(sync: bool) -> Round:
                folder = Path(scratch) / f"queue-{next(numbers)}"
                return asyncio.run(leasehold_round(folder, args.tasks, args.concurrency, sync))

            sides: dict[str, Callable[[], Round]] = {
                "leasehold, async handler": lambda: ours(sync=False),
                "leasehold, sync handler": lambda: ours(sync=True),
                "rq, SimpleWorker": lambda: rq_round(socket, args.tasks, forks=False),
                "rq, Worker": lambda: rq_round(socket, args.forked_tasks, forks=True),
            }
            rounds = [{name: side() for name, side in sides.items()} for _ in range(args.rounds)]
        finally:
            server.terminate()
            server.wait()
    report(rounds)


def report(rounds: list[dict[str, Round]]) -> None:
    def median(name: str, what: Callable[[Round], float]) -> float:
        return statistics.median(what(each[name]) for each in rounds)

    print(f"{'side':<26} {'submit/s':>9} {'work/s':>8} {'whole/s':>8} {'in Python':>10} {'cpu µs/task':>12}")
    for name in rounds[0]:
        share = median(name, lambda each: each.in_python / each.in_process)
        cost = median(name, lambda each: each.in_process / each.tasks * 1e6)
        print(
            f"{name:<26} {median(name, lambda each: each.submitted_per_sec):>9.0f}"
            f" {median(name, lambda each: each.worked_per_sec):>8.0f}"
            f" {median(name, lambda each: each.whole_per_sec):>8.0f} {share:>9.0%} {cost:>12.0f}"
        )
    print()
    for ours in ("leasehold, async handler", "leasehold, sync handler"):
        for theirs in ("rq, SimpleWorker", "rq, Worker"):
            worked = [each[ours].worked_per_sec / each[theirs].worked_per_sec for each in rounds]
            whole = [each[ours].whole_per_sec / each[theirs].whole_per_sec for each in rounds]
            print(
                f"{ours} against {theirs}: {statistics.median(worked):.1f} times the tasks run,"
                f" {statistics.median(whole):.1f} times submitted and run"
            )


if __name__ == "__main__":
    main()
