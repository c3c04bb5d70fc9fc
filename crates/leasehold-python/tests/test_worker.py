"""Workers: running, stopping, and the renewal of their claims."""

from __future__ import annotations

import asyncio
import contextvars
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import command_line

import leasehold.sync
from leasehold import Conflict, Context, Invalid, Polling, ShardLeasing, Worker, connect, testing

CALLER = contextvars.ContextVar("CALLER", default="nobody")


async def test_async_and_sync_handlers_run_side_by_side(store: dict[str, Any]) -> None:
    async with await connect(**store) as queue:
        worker = Worker(queue, "worker-1", concurrency=4)
        both = threading.Barrier(2, timeout=30)
        main = threading.current_thread()

        @worker.task("sync")
        def sync(ctx: Context, input: int) -> dict[str, Any]:
            # Passes only if another one runs at the same time.
            both.wait()
            return {"input": input, "main": threading.current_thread() is main}

        @worker.task("async")
        async def not_sync(ctx: Context, input: int) -> bool:
            await asyncio.sleep(0)
            return threading.current_thread() is main

        tasks = [await queue.submit("sync", number) for number in range(2)]
        other = await queue.submit("async")
        assert (await worker.run(drain=True)).completed == 3
        outputs = [(await queue.get(task.id)).output for task in tasks]
        assert outputs == [{"input": 0, "main": False}, {"input": 1, "main": False}]
        assert (await queue.get(other.id)).output is True


async def test_closing_the_queue_releases_the_tasks_of_its_workers(folder: Path) -> None:
    queue = await connect(folder)
    worker = Worker(queue, "w")
    started = asyncio.Event()

    @worker.task("long")
    async def long(ctx: Context, input: None) -> None:
        started.set()
        await asyncio.sleep(600)

    task = await queue.submit("long")
    running = asyncio.create_task(worker.run())
    await started.wait()
    await queue.close()
    assert (await running).put_back == 1
    async with await connect(folder) as queue:
        back = await queue.get(task.id)
        assert (back.status, back.attempt) == ("pending", 0)


async def test_a_task_cancelled_from_outside_stops_its_async_handler(folder: Path) -> None:
    async with await connect(folder) as queue:
        worker = Worker(queue, "worker-1")
        begun: asyncio.Queue[Context] = asyncio.Queue()
        caught = []

        @worker.task("long")
        async def long(ctx: Context, input: None) -> None:
            begun.put_nowait(ctx)
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError as error:
                caught.append((error, ctx.cancelled))
                raise

        task = await queue.submit("long")
        running = asyncio.create_task(worker.run(drain=True))
        ctx = await begun.get()
        assert (await queue.cancel(task.id)).cancel_requested
        # The next renewal reads the cancellation; `extend` starts one, so the test works with the default lease.
        ctx.extend()
        assert (await queue.wait(task.id, timeout=120)).status == "cancelled"
        assert len(caught) == 1 and caught[0][1]
        assert (await running).cancelled == 1


async def test_a_sync_handler_sees_that_it_is_cancelled(folder: Path) -> None:
    async with await connect(folder) as queue:
        worker = Worker(queue, "worker-1")
        begun: asyncio.Queue[Context] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        @worker.task("long")
        def long(ctx: Context, input: None) -> str:
            loop.call_soon_threadsafe(begun.put_nowait, ctx)
            while not ctx.cancelled:
                time.sleep(0.01)
            return "stopped in time"

        task = await queue.submit("long")
        running = asyncio.create_task(worker.run(drain=True))
        ctx = await begun.get()
        await queue.cancel(task.id)
        ctx.extend()
        assert (await queue.wait(task.id, timeout=120)).status == "cancelled"
        assert (await running).cancelled == 1


@pytest.mark.parametrize("how", ["returns", "raises", "catches"])
async def test_a_handler_that_stops_when_cancelled_has_not_completed_its_task(folder: Path, how: str) -> None:
    async with await connect(folder) as queue:
        worker, begun, loop = Worker(queue, "w"), asyncio.Event(), asyncio.get_running_loop()

        def sync(ctx: Context, input: None) -> None:
            if how == "raises":
                ctx.raise_if_cancelled()
            loop.call_soon_threadsafe(begun.set)
            while not ctx.cancelled:
                time.sleep(0.01)
            if how == "raises":
                ctx.raise_if_cancelled()

        async def catches(ctx: Context, input: None) -> str:
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
            return "cleaned up"

        worker.task("long")(catches if how == "catches" else sync)
        task = await queue.submit("long")
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), 60)
        worker.abort()
        counts = await running
        assert (counts.completed, counts.put_back) == (0, 1)
        back = await queue.get(task.id)
        assert (back.status, back.attempt, back.output) == ("pending", 0, None)


async def test_a_handler_that_ignores_its_cancellation_and_returns_has_completed_its_task(folder: Path) -> None:
    async with await connect(folder) as queue:
        worker, begun, loop = Worker(queue, "w"), asyncio.Event(), asyncio.get_running_loop()
        aborted = threading.Event()

        @worker.task("long")
        def long(ctx: Context, input: None) -> str:
            loop.call_soon_threadsafe(begun.set)
            assert aborted.wait(60)
            return "done"

        task = await queue.submit("long")
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), 60)
        worker.abort()
        aborted.set()
        assert (await running).completed == 1
        assert (await queue.get(task.id)).output == "done"


async def test_a_handler_that_times_out_is_cancelled_and_retried() -> None:
    async with await connect("data") as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("short")
        async def short(ctx: Context, input: None) -> int:
            if ctx.attempt == 1:
                await asyncio.sleep(600)
            return ctx.attempt

        # Long enough for the second attempt, which does nothing, also on a busy machine.
        task = await queue.submit("short", timeout=5)
        await worker.run(drain=True)
        done = await queue.get(task.id)
        assert done.output == 2
        assert "did not finish within 5 s" in (done.history[2].why or "")


HOLDS_THE_LOCK = '''
import asyncio, sys, threading, time
from leasehold import Worker, connect

others = 0

def watch():
    global others
    while True:
        others += 1
        time.sleep(0.01)

async def main():
    threading.Thread(target=watch, daemon=True).start()
    async with await connect(sys.argv[1]) as queue:
        worker = Worker(queue, "holder", lease_secs=6)

        @worker.task("sync")
        def sync(ctx, input):
            # No other thread gets the interpreter lock until this is over.
            sys.setswitchinterval(1_000)
            before, begun = others, time.monotonic()
            while time.monotonic() - begun < 19:
                pass
            return others - before

        @worker.task("loop")
        async def loop(ctx, input):
            time.sleep(19)
            return 0

        await worker.run(drain=True)

asyncio.run(main())
'''


async def test_a_claim_outlives_three_leases_of_a_handler_that_blocks(folder: Path) -> None:
    # Concurrently: a lease must be long enough for a busy machine, and this takes three of them.
    await asyncio.gather(*(outlives_three_leases(folder / each, each) for each in ("sync", "loop")))


async def outlives_three_leases(folder: Path, task_type: str) -> None:
    async with await connect(folder) as queue:
        task = await queue.submit(task_type)
        holder = subprocess.Popen([sys.executable, "-c", HOLDS_THE_LOCK, str(folder)])
        try:
            while (await queue.get(task.id)).status == "pending":
                await asyncio.sleep(0.02)
            # Another worker keeps trying to claim the task.
            other = Worker(queue, "other", lease_secs=6)

            @other.task(task_type)
            async def take(ctx: Context, input: None) -> str:
                return "other"

            taking = asyncio.create_task(other.run())
            done = await queue.wait(task.id, timeout=120)
            other.stop()
            counts = await taking
        finally:
            await asyncio.to_thread(holder.wait, 60)
        assert (done.history[-1].by, done.epoch) == ("holder", 1)
        # Number of times another thread ran: at most once, just before. Without the lock it would be hundreds.
        assert done.output <= 1
        assert (counts.started, counts.recovered) == (0, 0)
        claimed, completed = done.history[1].at, done.history[2].at
        assert (completed - claimed).total_seconds() > 18


async def test_rust_runs_tasks_of_python_and_the_other_way_round(store: dict[str, Any]) -> None:
    variables = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testsecret", "AWS_REGION": "us-east-1"}
    if "endpoint" in store:
        variables["AWS_ENDPOINT_URL"] = store["endpoint"]
    at = ["--store", store["store"]]

    def rust(*args: object) -> str:
        return command_line(*args, *at, env=variables | {"PATH": "/usr/bin:/bin"}).stdout

    async with await connect(**store) as queue:
        ours = [await queue.submit("for-rust", {"number": number, "name": "Ädä"}) for number in range(20)]
        await asyncio.to_thread(
            rust, "worker", "--id", "rust", "--exec", "for-rust=cat", "--drain", "--concurrency", "4"
        )
        for number, task in enumerate(ours):
            done = await queue.get(task.id)
            assert done.output == {"number": number, "name": "Ädä"} and done.history[1].by == "rust"

        theirs = []
        for number in range(20):
            text = json.dumps({"number": number, "name": "Ädä"})
            theirs.append((await asyncio.to_thread(rust, "submit", "-t", "for-python", "-i", text)).strip())
        worker = Worker(queue, "python", concurrency=4)

        @worker.task("for-python")
        async def echo(ctx: Context, input: Any) -> Any:
            return input

        assert (await worker.run(drain=True)).completed == 20
        for number, id in enumerate(theirs):
            shown = json.loads(await asyncio.to_thread(rust, "get", id, "--json"))
            assert shown["output"] == {"number": number, "name": "Ädä"}
            assert shown["history"][1]["by"] == "python"


async def test_a_task_can_be_put_into_the_inbox_of_a_worker(folder: Path) -> None:
    async with await connect(folder, dispatch_mode="direct") as producer, await connect(folder) as queue:
        worker = Worker(queue, "ada", direct=True)

        @worker.task("x")
        async def handler(ctx: Context, input: int) -> int:
            return input

        running = asyncio.create_task(worker.run())
        while not (folder / "workers" / "ada.inbox.json").exists():
            await asyncio.sleep(0.01)
        task = await producer.submit("x", 1)
        assert (await producer.wait(task.id, timeout=60)).output == 1
        with pytest.raises(Conflict, match='worker id `ada` is in use until'):
            namesake = Worker(queue, "ada", direct=True)
            namesake.task("x")(handler)
            await namesake.run()
        worker.stop()
        await running


async def test_worker_options_reach_the_worker(folder: Path) -> None:
    async with await connect(folder, shard_prefix_len=1) as queue:

        async def worked_by(**options: Any) -> list[tuple[str, str]]:
            worker = Worker(queue, "w", polling=Polling(min_interval_ms=10, max_interval_ms=50), **options)

            @worker.task("x")
            async def handler(ctx: Context, input: None) -> None: ...

            running = asyncio.create_task(worker.run())
            while not (served := worker.served()):
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
            worker.stop()
            await running
            return served

        assert await worked_by() == [("0", "f")]
        assert await worked_by(shards=["0", "1", "7"]) == [("0", "1"), ("7", "7")]
        assert await worked_by(shard_range="8-b") == [("8", "b")]
        assert await worked_by(shard_leasing=ShardLeasing(ttl_secs=90, renew_interval_secs=30)) == [("0", "f")]
        for options, message in [
            ({"shards": "07"}, "shards must be a list"),
            ({"shards": []}, "worker.shards must be a list of at least one"),
            ({"shard_leasing": {"ttl_secs": 10}}, "shard_leasing must be a bool or a leasehold.ShardLeasing, got dict"),
            ({"polling": {"factor": 2}}, "polling must be a leasehold.Polling, got dict"),
            ({"stop_wait_secs": -1}, "worker.stop_wait_secs must be"),
            ({"shards": ["zz"]}, "zz"),
            ({"shards": ["0"], "shard_range": "0-1"}, "exclude each other"),
            ({"shards": ["0"], "shard_leasing": True}, "excludes"),
            ({"concurrency": 0}, "worker.concurrency must be"),
            ({"lease_secs": 1}, "worker.lease_secs must be"),
            ({"polling": Polling(min_interval_ms=0)}, "min_interval_ms must be"),
        ]:
            with pytest.raises(Invalid, match=message):
                worker = Worker(queue, "w", **options)
                worker.task("x")(lambda ctx, input: None)
                await worker.run(drain=True)
        for kind in (Worker, leasehold.sync.Worker):
            with pytest.raises(Invalid, match="queue must be a leasehold"):
                kind(None)
        with pytest.raises(TypeError, match="unexpected keyword argument 'concurency'"):
            Worker(queue, concurency=3)  # type: ignore[call-arg]
        with pytest.raises(Invalid, match="no handlers"):
            await Worker(queue, "w").run(drain=True)


async def test_a_handler_that_does_not_stop_is_awaited_for_stop_wait_secs(folder: Path) -> None:
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
        begun = time.monotonic()
        worker.abort()
        counts = await running
        enough.set()
        assert time.monotonic() - begun < 5
        assert (counts.lost, counts.put_back) == (1, 0)
        # Its claim is left to expire.
        assert (await queue.get(task.id)).status == "running"


async def test_handlers_inherit_the_context_of_the_caller_of_run() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("sync")
        def sync(ctx: Context, input: str) -> str:
            before = CALLER.get()
            CALLER.set(input)
            return before

        @worker.task("async")
        async def not_sync(ctx: Context, input: str) -> str:
            before = CALLER.get()
            CALLER.set(input)
            return before

        CALLER.set("the test")
        tasks = [await queue.submit(task_type, "a handler") for task_type in ("sync", "async") * 2]
        await worker.run(drain=True)
        # Changes of one handler do not affect the others.
        assert [(await queue.get(task.id)).output for task in tasks] == ["the test"] * 4


async def test_concurrency_is_a_bound(folder: Path) -> None:
    async with await connect(folder, durability="os") as queue:
        worker = Worker(queue, "w", concurrency=3)
        now = most = 0
        full = asyncio.Event()

        @worker.task("x")
        async def handler(ctx: Context, input: None) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == 3:
                full.set()
            # The first ones wait for each other; after that an extra one would have time to start.
            await asyncio.wait_for(full.wait(), 60)
            await asyncio.sleep(0.02)
            now -= 1

        await asyncio.gather(*(queue.submit("x") for _ in range(30)))
        await worker.run(drain=True)
        assert most == 3


async def test_cancelling_the_run_releases_tasks(folder: Path) -> None:
    async with await connect(folder) as queue:
        worker = Worker(queue, "w")
        started = asyncio.Event()

        @worker.task("long")
        async def long(ctx: Context, input: None) -> None:
            started.set()
            await asyncio.sleep(600)

        task = await queue.submit("long")
        running = asyncio.create_task(worker.run())
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        back = await queue.get(task.id)
        assert (back.status, back.attempt) == ("pending", 0)


async def test_progress_is_readable_while_the_handler_runs(folder: Path) -> None:
    async with await connect(folder) as queue:
        worker = Worker(queue, "w")
        seen = asyncio.Event()

        @worker.task("long")
        async def long(ctx: Context, input: None) -> None:
            ctx.progress({"done": 7})
            ctx.extend()
            await seen.wait()

        task = await queue.submit("long")
        running = asyncio.create_task(worker.run(drain=True))
        while (await queue.get(task.id)).progress != {"done": 7}:
            await asyncio.sleep(0.02)
        seen.set()
        assert (await running).completed == 1
        assert leasehold.__version__
