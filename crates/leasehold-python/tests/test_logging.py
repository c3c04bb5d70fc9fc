"""Logging of failed handlers, and of the native module."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BUCKET, Proxy

from leasehold import Context, Permanent, Polling, Snooze, Worker, connect, testing


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("task_type", ["sync", "async", "permanent"])
async def test_a_handler_that_raises_is_logged_once_with_its_traceback(
    caplog: pytest.LogCaptureFixture, task_type: str
) -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        def helper() -> None:
            raise ValueError("bad luck")

        @worker.task("sync")
        def sync(ctx: Context, input: None) -> None:
            helper()

        @worker.task("async")
        async def not_sync(ctx: Context, input: None) -> None:
            helper()

        @worker.task("permanent")
        async def permanent(ctx: Context, input: None) -> None:
            try:
                helper()
            except ValueError as error:
                raise Permanent("hopeless") from error

        task = await queue.submit(task_type, max_attempts=1)
        await worker.run(drain=True)
    [record] = warnings(caplog)
    assert (record.name, record.levelno) == ("leasehold.worker", logging.WARNING)
    assert record.getMessage() == f"attempt failed task={task.id} task_type={task_type} attempt=1"
    text = logging.Formatter().format(record)
    assert "ValueError: bad luck" in text and "in helper" in text
    assert "leasehold/_handlers.py" not in text


async def test_a_snooze_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("nap")
        async def nap(ctx: Context, input: None) -> None:
            if ctx.epoch == 1:
                raise Snooze(5)

        await queue.submit("nap")
        assert (await worker.run(drain=True)).completed == 1
    assert warnings(caplog) == []


async def test_warnings_of_the_native_module_are_logged_in_python(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with await connect(folder) as queue:
        worker = Worker(queue, "w", stop_wait_secs=0)
        loop, started, enough = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        @worker.task("deaf")
        def deaf(ctx: Context, input: None) -> None:
            loop.call_soon_threadsafe(started.set)
            enough.wait(60)

        task = await queue.submit("deaf")
        running = asyncio.create_task(worker.run())
        await started.wait()
        worker.abort()
        await running
        enough.set()
    [record] = warnings(caplog)
    assert (record.name, record.levelno) == ("leasehold.worker", logging.WARNING)
    assert "does not stop" in record.getMessage() and task.id in record.getMessage()


FAILS = """
import asyncio, sys
from leasehold import Worker, connect

async def main():
    async with await connect(sys.argv[1]) as queue:
        worker = Worker(queue, "w")

        @worker.task("fails")
        async def fails(ctx, input):
            raise ValueError("bad luck")

        await queue.submit("fails", max_attempts=1)
        await worker.run(drain=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("level", [None, "error"])
def test_a_failure_is_on_standard_error_without_any_configuration(folder: Path, level: str | None) -> None:
    environment = os.environ | ({} if level is None else {"LEASEHOLD_LOG": level})
    command = [sys.executable, "-c", FAILS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.count("ValueError: bad luck") == 1
    assert "\x1b" not in done.stderr


async def test_an_outage_of_the_store_is_logged_once_and_the_worker_continues_after_it(
    s3: dict[str, str], proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"s3://{BUCKET}/{uuid.uuid4()}"
    async with await connect(store, **(s3 | {"endpoint": proxy.endpoint})) as queue, await connect(store, **s3) as other:
        worker = Worker(queue, "w", polling=Polling(min_interval_ms=10, max_interval_ms=200))
        done = asyncio.Event()

        @worker.task("greet")
        async def greet(ctx: Context, input: None) -> None:
            done.set()

        running = asyncio.create_task(worker.run())
        await until(worker.served)
        proxy.be_away()
        await until(lambda: warnings(caplog))
        await other.submit("greet")
        await proxy.be_there()
        async with asyncio.timeout(60):
            await done.wait()
        await until(lambda: len(warnings(caplog)) > 1)
        worker.stop()
        await running
    away, back = warnings(caplog)
    assert (away.name, back.name) == ("leasehold.store", "leasehold.store")
    assert away.getMessage().startswith("store unreachable, retrying")
    assert back.getMessage().startswith("store available again")
