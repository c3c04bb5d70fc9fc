"""The in-memory queue for users' tests, and its simulated time."""

from __future__ import annotations

import asyncio
import datetime
import time

import pytest

from leasehold import Context, Invalid, NotYet, Worker, connect, testing

BEGINNING = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


async def test_no_task_runs_early_and_hours_pass_at_once() -> None:
    begun = time.monotonic()
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("remind")
        async def remind(ctx: Context, input: str) -> str:
            return f"reminded {input}"

        task = await queue.submit("remind", "Ada", delay=3_600)
        assert (await worker.run(drain=True)).started == 0
        await queue.advance(datetime.timedelta(hours=1))
        assert (await worker.run(drain=True)).completed == 1
        assert (await queue.get(task.id)).output == "reminded Ada"
        assert queue.now() - BEGINNING >= datetime.timedelta(hours=1)
    assert time.monotonic() - begun < 60


async def test_time_stands_still_while_python_runs() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w", lease_secs=3)
        passed = []

        @worker.task("async")
        async def handler(ctx: Context, input: None) -> None:
            before = queue.now()
            await asyncio.sleep(0.3)
            passed.append(queue.now() - before)

        @worker.task("sync")
        def sync(ctx: Context, input: None) -> None:
            before = queue.now()
            time.sleep(0.3)
            passed.append(queue.now() - before)

        await queue.submit("async")
        await queue.submit("sync")
        assert (await worker.run(drain=True)).completed == 2
        assert passed == [datetime.timedelta(0)] * 2
        # A worker in the background does not make it pass, either.
        running = asyncio.create_task(worker.run())
        await queue.stats()
        before = queue.now()
        await asyncio.sleep(0.3)
        assert queue.now() == before
        worker.stop()
        await running


async def test_waiting_makes_time_pass() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("fails")
        async def fails(ctx: Context, input: None) -> int:
            if ctx.attempt < 4:
                raise OSError("not yet")
            return ctx.attempt

        running = asyncio.create_task(worker.run())
        task = await queue.submit("fails", delay=86_400)
        assert (await queue.wait(task.id)).output == 4
        assert queue.now() - BEGINNING > datetime.timedelta(days=1)
        worker.stop()
        await running


async def test_settings_files_and_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_NONSENSE", "x")
    async with await testing.queue(shard_prefix_len=2) as queue:
        assert queue.shard_prefix_len == 2
        worker = Worker(queue)

        @worker.task("x")
        async def handler(ctx: Context, input: None) -> None: ...

        await queue.submit("x")
        assert (await worker.run(drain=True)).completed == 1


async def test_only_a_test_queue_can_advance_time() -> None:
    async with await connect("data") as queue:
        with pytest.raises(Invalid, match="only a test queue can advance time"):
            await testing.TestQueue(queue._loop, queue._native, queue._about).advance(1)


async def test_time_passes_when_one_wait_starts_while_another_ends() -> None:
    async with await testing.queue() as queue:

        async def wait_for_nothing() -> None:
            task = await queue.submit("nobody-runs-this")
            for _ in range(20):
                with pytest.raises(NotYet):
                    await queue.wait(task.id, timeout=60)

        # Each wait ends only if time passes; waits end and start concurrently, hundreds of times.
        await asyncio.wait_for(asyncio.gather(*(wait_for_nothing() for _ in range(20))), 120)
