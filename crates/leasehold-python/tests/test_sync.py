"""The blocking API: handlers, forks, signals and threads."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold import Context, Invalid, sync


def test_a_handler_submits_without_asyncio(folder: Path) -> None:
    @dataclasses.dataclass
    class Person:
        name: str

    with sync.connect(folder) as queue:
        worker = sync.Worker(queue, "w")

        @worker.task("greet", max_attempts=2)
        def greet(ctx: Context, input: Person) -> str:
            return f"Hello, {input.name}!"

        task = greet.submit(Person("Ada"), tags={"a": "b"})
        assert worker.run(drain=True).completed == 1
        done = queue.get(task.id)
        assert (done.output, done.max_attempts, done.tags) == ("Hello, Ada!", 2, {"a": "b"})
        assert repr(greet) == "<leasehold.sync.Handler of greet>"
        assert (greet.task_type, greet.max_attempts, greet.__name__) == ("greet", 2, "greet")


FORKS = """
import os, signal, sys
import leasehold
from leasehold import sync

with sync.connect(sys.argv[1]) as queue:
    child = os.fork()
    if child == 0:
        # Ends a child that hangs; its exit code is checked below.
        signal.alarm(20)
        try:
            queue.submit("greet")
        except leasehold.Invalid as error:
            print(error)
        with sync.connect(sys.argv[1]) as own:
            print(own.submit("greet", "child").id, flush=True)
        queue.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    print(queue.submit("greet", "parent").id)
"""


def test_a_forked_process_is_rejected_and_may_connect_again(folder: Path) -> None:
    message, child, parent = run(FORKS, folder)
    assert message.startswith("this process was forked after the queue was opened")
    assert "connect again in the child" in message
    with sync.connect(folder) as queue:
        assert {queue.get(child).input, queue.get(parent).input} == {"child", "parent"}


EXITS = """
import signal, sys
from leasehold import sync

signal.alarm(60)
with sync.connect(sys.argv[1]) as queue:
    worker = sync.Worker(queue, "w")

    @worker.task("exit")
    async def leave(ctx, input):
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}[input]("enough")

    tasks = [queue.submit("exit", how, max_attempts=1) for how in ("exit", "interrupt")]
    print(worker.run(drain=True).failed)
    for task in tasks:
        print(queue.get(task.id).error.splitlines()[0])
"""


def test_a_handler_that_exits_fails_and_the_worker_goes_on(folder: Path) -> None:
    assert run(EXITS, folder, logged=2) == ["2", "SystemExit: enough", "KeyboardInterrupt: enough"]


EARLY = """
import os, signal, sys, time
from leasehold import sync

signal.alarm(60)
with sync.connect(sys.argv[1]) as queue:
    worker = sync.Worker(queue, "w")
    worker.task("greet")(lambda ctx, input: None)
    run = queue._thread.run

    def late(work):
        queue._thread.run = run
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return run(work)

    queue._thread.run = late
    print(worker.run().started)
"""


def test_a_signal_before_the_worker_has_started_stops_it(folder: Path) -> None:
    assert run(EARLY, folder) == ["0"]


def run(program: str, folder: Path, logged: int = 0) -> list[str]:
    """Runs a program and returns the lines it prints; its standard error has only `logged` warnings."""
    command = [sys.executable, "-W", "error", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("attempt failed task=") == done.stderr.count("Traceback") == logged
    assert "never" not in done.stderr and (logged > 0 or done.stderr == "")
    return done.stdout.splitlines()


def test_a_worker_may_be_stopped_after_its_queue_was_closed(folder: Path) -> None:
    with sync.connect(folder) as queue:
        worker = sync.Worker(queue, "w")
        tasks = [queue.submit("greet").id for _ in range(3)]
        listed = queue.list()
        assert next(listed).id in tasks
    worker.stop()
    worker.abort()
    queue.close()
    with pytest.raises(Invalid, match="closed"):
        next(listed)
