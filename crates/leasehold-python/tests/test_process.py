"""Processes: signals, forks, the command line, the blocking API."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from leasehold import Context, Invalid, connect, sync

# Prints a line when a worker has handled the signal: tasks submitted after that are not claimed by it.
TELLS = '''
def report(target, name):
    original = getattr(target, name)

    def reporting(*args):
        setattr(target, name, original)
        original(*args)
        print("draining", flush=True)

    setattr(target, name, reporting)
'''

WORKS = TELLS + '''
import asyncio, sys
import leasehold._worker
from leasehold import Worker, connect

async def main():
    async with await connect(sys.argv[1]) as queue:
        worker = Worker(queue, "w")
        report(leasehold._worker._Running, "handle_signal")

        @worker.task("slow")
        async def slow(ctx, input):
            print("started", flush=True)
            await asyncio.sleep(input)
            return "finished"

        counts = await worker.run()
        print(counts.completed, counts.put_back, flush=True)

asyncio.run(main())
'''

WORKS_SYNC = TELLS + '''
import sys, time
from leasehold import sync

with sync.connect(sys.argv[1]) as queue:
    worker = sync.Worker(queue, "w")
    report(worker._worker, "stop")

    @worker.task("slow")
    def slow(ctx, input):
        print("started", flush=True)
        until = time.monotonic() + input
        while time.monotonic() < until and not ctx.cancelled:
            time.sleep(0.01)
        if ctx.cancelled:
            raise RuntimeError("stopped")
        return "finished"

    counts = worker.run()
    print(counts.completed, counts.put_back, flush=True)
'''


@pytest.mark.parametrize("program", [WORKS, WORKS_SYNC], ids=["async", "sync"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_the_process_exits_with_success(folder: Path, program: str, number: signal.Signals) -> None:
    with sync.connect(folder) as queue:
        task = queue.submit("slow", 1)
        process = start(program, folder)
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        assert process.stdout.readline() == "draining\n"
        after = queue.submit("slow", 0)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "1 0\n")
        assert queue.get(task.id).output == "finished"
        assert queue.get(after.id).status == "pending"


@pytest.mark.parametrize("program", [WORKS, WORKS_SYNC], ids=["async", "sync"])
def test_a_second_signal_releases_tasks(folder: Path, program: str) -> None:
    with sync.connect(folder) as queue:
        task = queue.submit("slow", 600)
        process = start(program, folder)
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        # Two signals of the same kind could be merged into one.
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "0 1\n")
        back = queue.get(task.id)
        assert (back.status, back.attempt) == ("pending", 0)


TWO_WORKERS = """
import asyncio, os, signal, sys
from leasehold import Worker, connect

async def main():
    async with await connect(sys.argv[1]) as queue:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        started = asyncio.Barrier(3)

        async def slow(ctx, input):
            await started.wait()
            await asyncio.sleep(600)

        workers = [Worker(queue, name, concurrency=1, drain_secs=600) for name in ("one", "two")]
        for worker in workers:
            worker.task("slow")(slow)
            await queue.submit("slow")
        brief = Worker(queue, "brief")
        brief.task("other")(slow)
        running = [asyncio.create_task(worker.run()) for worker in workers]
        # A worker that ends does not remove the signal handlers of the others.
        await brief.run(drain=True)
        await started.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert not any(each.done() for each in running)
        os.kill(os.getpid(), signal.SIGINT)
        print(*[(await each).put_back for each in running])
        assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))

asyncio.run(main())
"""


def test_a_signal_reaches_all_workers_of_an_event_loop(folder: Path) -> None:
    process = start(TWO_WORKERS, folder)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "1 1\n")


DEAF = """
import asyncio, sys, time
from leasehold import Worker, connect

async def main():
    async with await connect(sys.argv[1]) as queue:
        worker, loop = Worker(queue, "w", stop_wait_secs=0), asyncio.get_running_loop()

        @worker.task("deaf")
        def deaf(ctx, input):
            loop.call_soon_threadsafe(worker.abort)
            time.sleep(600)

        await queue.submit("deaf")
        print((await worker.run()).lost, flush=True)

asyncio.run(main())
"""


def test_a_handler_that_does_not_stop_does_not_keep_the_process_alive(folder: Path) -> None:
    process = start(DEAF, folder)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "1\n")


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)


FORKS = '''
import asyncio, os, sys
import leasehold

async def connected():
    return await leasehold.connect(sys.argv[1])

loop = asyncio.new_event_loop()
queue = loop.run_until_complete(connected())
child = os.fork()
if child == 0:
    try:
        loop.run_until_complete(queue.submit("greet"))
    except leasehold.Invalid as error:
        print(error)

    async def anew():
        async with await leasehold.connect(sys.argv[1]) as own:
            return (await own.submit("greet", "child")).id

    print(asyncio.run(anew()), flush=True)
    # A child that cleans up does not disturb its parent.
    loop.run_until_complete(queue.close())
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

async def go_on():
    print((await queue.submit("greet", "parent")).id)
    await queue.close()

loop.run_until_complete(go_on())
'''


def test_a_forked_process_is_rejected_with_a_clear_message_and_may_connect_again(folder: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    message, child, parent = done.stdout.splitlines()
    assert message.startswith("this process was forked after the queue was opened")
    assert "connect again in the child" in message
    with sync.connect(folder) as queue:
        assert {queue.get(child).input, queue.get(parent).input} == {"child", "parent"}


def test_python_dash_m_is_the_command_line(folder: Path) -> None:
    def run(*args: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "leasehold", *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return done

    assert run("--version").stdout.startswith("leasehold ")
    assert "Usage: leasehold" in run("--help").stdout
    id = run("submit", "-t", "greet", "-i", '"Ada"', "--store", folder).stdout.strip()
    run("worker", "--exec", "greet=cat", "--drain", "--store", folder)
    assert '"Ada"' in run("get", id, "--store", folder).stdout
    assert "is not a task id" in run("get", "x", "--store", folder, code=64).stderr
    assert "All 200 tasks were completed" in run("demo").stdout


@pytest.mark.parametrize("args", [[], ["--workers", "5", "--quick"], ["--help"], ["--json"]])
def test_the_command_cost_is_not_in_the_package_and_says_where_it_is(args: list[str]) -> None:
    command = [sys.executable, "-m", "leasehold"]
    done = subprocess.run([*command, "cost", *args], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (64, "")
    assert "no command `cost`" in done.stderr and "cargo build --release -p leasehold-cli" in done.stderr
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60).stdout
    commands = re.findall(r"^  ([a-z-]+)", shown, re.MULTILINE)
    assert "doctor" in commands and "cost" not in commands


def test_the_command_line_ends_on_ctrl_c(folder: Path) -> None:
    with sync.connect(folder) as queue:
        id = queue.submit("greet").id
        waits = [sys.executable, "-m", "leasehold", "wait", id, "--store", str(folder)]
        environment = os.environ | {"LEASEHOLD_LOG": "debug"}
        process = subprocess.Popen(waits, stderr=subprocess.PIPE, env=environment)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        process.communicate()


def test_the_blocking_api_has_every_operation(folder: Path) -> None:
    before = threading.active_count()
    with sync.connect(folder, shard_prefix_len=1) as queue:
        assert repr(queue) == f"<leasehold.sync.Queue folder {folder}>"
        task = queue.submit("greet", "Ada", tags={"a": "b"})
        later = queue.submit("greet", "Bob", delay=3_600)
        worker = sync.Worker(queue, "w")

        @worker.task("greet")
        def greet(ctx: Context, input: Any) -> str:
            return f"Hello, {input}! There are {queue.stats().running} running"

        assert worker.run(drain=True).completed == 1
        assert queue.wait(task.id, 5).output == "Hello, Ada! There are 1 running"
        assert [each.id for each in queue.list(tags={"a": "b"})] == [task.id]
        assert queue.cancel(later.id).status == "cancelled"
        assert queue.retry(later.id).status == "pending"
        assert queue.reschedule(later.id, delay=60).status == "pending"
        assert queue.history(task.id)[0].event == "submit"
        assert queue.check().tasks == 2
        assert queue.purge(3_600).marked == 0
        assert queue.ledger() and queue.now() and queue.id and queue.shard_prefix_len == 1
    # A handler's thread may still be ending.
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    # A thread of an earlier test may end meanwhile.
    assert threading.active_count() <= before
    with pytest.raises(Invalid, match="closed"):
        queue.stats()


async def test_an_async_handler_cannot_block_on_its_own_event_loop(folder: Path) -> None:
    async with await connect(folder):
        with sync.connect(folder) as queue:
            task = queue.submit("greet", max_attempts=1)
            worker = sync.Worker(queue, "w")

            @worker.task("greet")
            async def greet(ctx: Context, input: Any) -> None:
                queue.stats()

            worker.run(drain=True)
            error = queue.get(task.id).error or ""
            assert "must not call the blocking API of its own queue; use a sync handler" in error


def test_memory_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    """Apart from malloc's bounded caches per thread, a finished task leaves no memory behind."""
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"}
    bench = Path(__file__).parents[1] / "bench/memory.py"
    command = [sys.executable, str(bench), "--windows", "4", "--tasks", "1000", "--store", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    # The first window fills caches. Of the others the smallest counts: a thread may start in any of them.
    grown = [float(line.split()[3]) for line in done.stdout.splitlines()[2:]]
    assert len(grown) == 3 and min(grown) < 10, done.stdout
