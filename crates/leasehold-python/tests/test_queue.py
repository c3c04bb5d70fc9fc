"""Every operation of a queue, on every kind of store."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import random
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import command_line

import leasehold
from leasehold import (
    Conflict,
    Invalid,
    NewTask,
    NotFound,
    NotYet,
    Permanent,
    RetryPolicy,
    Status,
    Submitted,
    Worker,
    connect,
    testing,
)

AHEAD = datetime.timezone(datetime.timedelta(hours=1))
NOBODY = "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"


async def test_a_task_is_submitted_worked_and_settled(store: dict[str, Any]) -> None:
    async with await connect(**store) as queue:
        submitted = await queue.submit("greet", {"name": "Ada"}, key="ada")
        assert submitted.is_new
        again = await queue.submit("greet", {"name": "Ada"}, key="ada")
        assert (again.id, again.is_new) == (submitted.id, False)
        worker = Worker(queue, "worker-1")

        @worker.task("greet")
        async def greet(ctx, input):
            return f"Hello, {input['name']}! ({ctx.attempt}, {ctx.epoch})"

        counts = await worker.run(drain=True)
        assert counts.completed == 1
        task = await queue.wait(submitted.id)
        assert task.status is Status.COMPLETED
        assert task.output == "Hello, Ada! (1, 1)"
        assert [change.event for change in task.history] == ["submit", "claim", "complete"]
        assert [change.by for change in task.history] == ["python", "worker-1", "worker-1"]


async def test_every_operation_does_what_its_command_does(store: dict[str, Any]) -> None:
    async with await connect(**store, shard_prefix_len=2) as queue:
        assert queue.shard_prefix_len == 2
        soon = queue.now() + datetime.timedelta(hours=1)
        task = NewTask(
            task_type="resize",
            input={"url": "a.png"},
            at=soon,
            max_attempts=7,
            retry_policy=RetryPolicy(max_secs=60),
            timeout=datetime.timedelta(seconds=30.5),
            expires_in=86_400,
            priority=9,
            tags={"customer": "17"},
        )
        first, second = await queue.submit_many([task, NewTask(task_type="measure", input=[1, 2.5, None, "ü"])])
        assert isinstance(first, Submitted) and isinstance(second, Submitted)
        task = await queue.get(first.id)
        assert task.status == "pending" and task.available_at is not None
        assert abs(task.available_at - soon) < datetime.timedelta(milliseconds=2)
        assert (task.max_attempts, task.timeout_secs, task.priority) == (7, 31, 9)
        assert (task.tags, task.retry_policy.max_secs) == ({"customer": "17"}, 60.0)
        assert task.shard == first.id[:2]
        assert (await queue.get(second.id)).input == [1, 2.5, None, "ü"]

        assert {each.id async for each in queue.list()} == {first.id, second.id}
        assert [each.id async for each in queue.list(tags={"customer": "17"})] == [first.id]
        assert [each.id async for each in queue.list(task_type="measure", status="pending")] == [second.id]
        assert [each async for each in queue.list(status=Status.FAILED)] == []
        assert len([each async for each in queue.list(limit=1)]) == 1

        stats = await queue.stats()
        assert (stats.due, stats.scheduled, stats.running) == (1, 1, 0)
        moved = await queue.reschedule(first.id, delay=7_200)
        assert moved.available_at is not None and moved.available_at > task.available_at
        assert (await queue.cancel(first.id)).status == "cancelled"
        assert (await queue.wait(first.id)).status == "cancelled"
        assert (await queue.retry(first.id)).status == "pending"
        history = await queue.history(first.id)
        assert [change.event for change in history] == ["submit", "reschedule", "cancel", "retry"]
        assert (await queue.purge(0, ["cancelled"])).deleted == 0
        checked = await queue.check()
        assert (checked.tasks, checked.uncovered, checked.corrupt) == (2, (), ())
        puts = [line for line in queue.ledger() if (line.verb, line.purpose) == ("put", "submit")]
        assert sum(line.requests for line in puts) >= 4


async def test_a_queue_in_a_folder_has_a_journal_unless_objects_are_asked_for(tmp_path: Path) -> None:
    for arguments, layout in [({}, "journal"), ({"layout": "objects"}, "objects"), ({"shard_prefix_len": 1}, "objects")]:
        folder = tmp_path / str(len(arguments)) / layout
        async with await connect(folder, **arguments):
            shown = await asyncio.to_thread(command_line, "init", "--store", folder)
            assert f"layout {layout}" in shown.stdout


async def test_stats_of_a_journal_have_its_final_tasks(folder: Path) -> None:
    async with await connect(folder) as queue:
        first = await queue.submit("resize")
        await queue.submit("resize")
        await queue.cancel(first.id)
        stats = await queue.stats()
        assert (stats.due, stats.running, stats.finished) == (1, 0, {"cancelled": 1})
    async with await testing.queue() as queue:
        assert (await queue.stats()).finished is None


async def test_the_task_of_a_key_is_reported_with_its_status_and_retried_if_asked_to() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("fails")
        async def fails(ctx, input):
            raise Permanent("hopeless")

        first = await queue.submit("fails", key="one")
        assert first == Submitted(first.id, is_new=True)
        pending = await queue.submit("fails", key="one", key_retry_failed=True)
        assert pending == Submitted(first.id, is_new=False, existing=Status.PENDING)
        await worker.run(drain=True)

        failed = await queue.submit("fails", key="one")
        assert failed == Submitted(first.id, is_new=False, existing=Status.FAILED)
        assert failed.existing is Status.FAILED
        assert (await queue.get(first.id)).status is Status.FAILED
        [retried] = await queue.submit_many([NewTask(task_type="fails", key="one", key_retry_failed=True)])
        assert retried == Submitted(first.id, is_new=False, existing=Status.FAILED, is_retried=True)
        assert isinstance(retried, Submitted) and retried.existing is Status.FAILED
        assert (await queue.get(first.id)).status is Status.PENDING
        with pytest.raises(Invalid, match="key_retry_failed needs a key"):
            await queue.submit("fails", key_retry_failed=True)


async def test_numbers_survive_a_round_trip() -> None:
    chance = random.Random(7)
    numbers = [chance.uniform(-1, 1) * 10.0 ** chance.randint(-300, 300) for _ in range(2_000)]
    numbers += [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 2**64 - 1, -(2**63), 10**18 + 1]
    async with await testing.queue() as queue:
        task = await queue.submit("measure", numbers)
        await queue.reschedule(task.id, delay=60)
        assert (await queue.get(task.id)).input == numbers


async def test_errors_have_the_right_class_and_message(folder: Path) -> None:
    async with await connect(folder) as queue:
        task = await queue.submit("greet", key="one")
        with pytest.raises(NotFound, match=NOBODY):
            await queue.get(NOBODY)
        with pytest.raises(NotFound):
            await queue.cancel(NOBODY)
        with pytest.raises(Invalid, match="is not a task id"):
            await queue.get("x")
        with pytest.raises(Conflict, match=f"belongs to task {task.id}"):
            await queue.submit("greet", "another input", key="one")
        with pytest.raises(Conflict, match="cannot be retried: the task is pending"):
            await queue.retry(task.id)
        with pytest.raises(NotYet, match="still not final after 50ms") as caught:
            await queue.wait(task.id, timeout=0.05)
        assert isinstance(caught.value, TimeoutError) and caught.value.kind == "unavailable"
        with pytest.raises(Invalid, match="shard_prefix_len is set to 3, but this queue has the layout `journal`"):
            await connect(folder, shard_prefix_len=3)
        with pytest.raises(Invalid, match="this queue has the layout `journal`, not `objects`"):
            await connect(folder, layout="objects")
        stats = await queue.stats()
        assert stats.due == 1
    with pytest.raises(Invalid, match="closed"):
        await queue.get(task.id)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Meeting:
    at: datetime.datetime


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input": float("nan")}, "the input cannot be written as JSON"),
        ({"input": {"a": "\ud800"}}, "the input cannot be written as JSON: .* surrogates not allowed"),
        ({"key": "\ud800"}, "key '.ud800' is not valid Unicode: surrogates not allowed"),
        ({"task_type": "\ud800"}, "task type '.ud800' is not valid Unicode: surrogates not allowed"),
        ({"input": {"a": object()}}, "object is neither a JSON type, nor a dataclass"),
        ({"input": {"at": datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)}}, r"datetime is neither a JSON.*isoformat\(\)"),
        ({"input": datetime.date(2030, 1, 1)}, r"date is neither a JSON.*isoformat\(\)"),
        ({"input": [uuid.UUID(int=1)]}, r"UUID is neither a JSON.*str\(\)"),
        ({"input": Colour.RED}, r"Colour is neither a JSON.*value"),
        ({"input": Meeting(datetime.datetime(2030, 1, 1))}, "datetime is neither a JSON type"),
        ({"input": {"a": [2**64]}}, "18446744073709551616, which does not fit into 64 bits"),
        ({"input": "x" * 300_000}, "input must be at most 262144 bytes"),
        ({"task_type": ""}, "task type"),
        ({"task_type": "a/b"}, "task type"),
        ({"task_type": 5}, "task type must be a str, got int"),
        ({"delay": -1}, "delay must be a number of seconds from 0 to [0-9]+, got -1"),
        ({"delay": "5"}, "delay must be a number of seconds from 0 to [0-9]+, got '5'"),
        ({"delay": 1e12}, "at most ten years ahead"),
        ({"delay": 10**400}, "must be a number of seconds from 0 to"),
        ({"at": datetime.datetime.min.replace(tzinfo=AHEAD)}, "at is out of range: 0001-01-01 00:00:00"),
        ({"at": datetime.datetime(2030, 1, 1)}, "a datetime with a time zone"),
        ({"delay": 1, "at": datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)}, "exclude each other"),
        ({"max_attempts": 0}, "max_attempts must be at least 1, got 0"),
        ({"max_attempts": "many"}, "invalid task: invalid type"),
        ({"priority": 10}, "priority must be 0 to 9, got 10"),
        ({"key": ""}, "idempotency key must not be empty"),
        ({"key": "k", "key_lifetime": 60}, "at least 1 hour"),
        ({"key_lifetime": 7_200}, "key_lifetime needs a key"),
        ({"tags": {"": "x"}}, "tag"),
    ],
)
async def test_invalid_orders_are_rejected_and_nothing_is_written(
    folder: Path, arguments: dict[str, Any], message: str
) -> None:
    async with await connect(folder) as queue:
        with pytest.raises(Invalid, match=message):
            await queue.submit(**{"task_type": "greet", **arguments})
        assert [task async for task in queue.list()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"store": "redis://x"}, "unknown store `redis://`"),
        ({"store": "x", "bucket": "y"}, "pass either store or bucket"),
        ({"bucket": "a/b"}, "is not a bucket name"),
        ({"prefix": "a"}, "pass bucket too"),
        ({"store": "x", "shard_prefix_len": 9}, "queue.shard_prefix_len must be"),
        ({"store": "x", "durability": "none"}, "queue.durability must be"),
        ({"store": "x", "profile": "nobody"}, "unknown profile `nobody`"),
        ({"store": "x", "access_key_id": "a"}, "is set without queue.secret_access_key"),
        ({"store": b"x"}, r"store must be a str or a path, got bytes; write os.fsdecode\(b'x'\)"),
        ({"store": "\udcff"}, "queue.store '.udcff' is not valid Unicode"),
        ({"bucket": 5}, "bucket must be a str, got int"),
        ({"bucket": "x", "region": "y", "endpoint": "http://me:secret@127.0.0.1:1"}, "must not contain a user"),
        ({"store": "s3://me:secret@x"}, "store address must not contain a user"),
    ],
)
async def test_invalid_addresses_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        await connect(**arguments)
    assert "secret@" not in str(caught.value)


async def test_an_endpoint_without_a_scheme_is_rejected() -> None:
    arguments = {"bucket": "x", "region": "y", "endpoint": "127.0.0.1:1"}
    keys = {"access_key_id": "a", "secret_access_key": "b"}
    with pytest.raises(Invalid, match="endpoint must start with http:// or https://"):
        await asyncio.wait_for(connect(**arguments, **keys), 30)


async def test_a_panic_of_the_native_module_is_an_internal_error() -> None:
    async with await testing.queue() as queue:
        for at_once in (False, True):
            with pytest.raises(leasehold.Internal, match="internal error: panicked on purpose; please report it"):
                await asyncio.wait_for(queue._loop.call(queue._native.panic, at_once), 30)
        assert (await queue.stats()).due == 0


async def test_a_bucket_that_does_not_exist_is_named_without_xml(s3: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="bucket `nowhere-at-all` does not exist") as caught:
        await connect(bucket="nowhere-at-all", **s3)
    assert "<" not in str(caught.value)


async def test_an_invalid_task_among_many_is_named_and_nothing_is_submitted(folder: Path) -> None:
    good = NewTask(task_type="greet")
    async with await connect(folder) as queue:
        for wrong, message in [
            (NewTask(task_type=""), r"tasks\[1\]: task type must not be empty"),
            (NewTask(task_type="greet", input=object()), r"tasks\[1\]: the input cannot be written as JSON"),
            (NewTask(task_type="greet", priority=10), r"tasks\[1\]: .*priority must be 0 to 9, got 10"),
            ({"task_type": "greet"}, r"tasks\[1\] must be a leasehold.NewTask, got dict"),
        ]:
            with pytest.raises(Invalid, match=message):
                await queue.submit_many([good, wrong])  # type: ignore[list-item]
        assert [task async for task in queue.list()] == []


async def test_times_out_of_range_are_rejected(folder: Path) -> None:
    async with await connect(folder) as queue:
        task = await queue.submit("greet")
        for delay in (1e12, 1e300, 10**400):
            with pytest.raises(Invalid, match="is out of range|must be a number of seconds"):
                await queue.reschedule(task.id, delay=delay)
        with pytest.raises(Invalid, match="must be a number of seconds"):
            await queue.purge(1e300)


async def test_settings_files_and_variables_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("leasehold.toml").write_text('[queue]\nstore = "from-file"\nshard_prefix_len = 2\n')
    async with await connect() as queue:
        assert repr(queue).endswith("/work/from-file>") and queue.shard_prefix_len == 2
    monkeypatch.setenv("LEASEHOLD_STORE", str(tmp_path / "from-variable"))
    async with await connect() as queue:
        assert repr(queue) == f"<leasehold.Queue folder {tmp_path}/from-variable>"
        monkeypatch.setenv("LEASEHOLD_WORKER_ID", "named-by-variable")
        worker = Worker(queue)

        @worker.task("greet")
        async def greet(ctx, input):
            return worker.name

        task = await queue.submit("greet")
        await worker.run(drain=True)
        assert (await queue.get(task.id)).output == "named-by-variable"
    monkeypatch.setenv("LEASEHOLD_STOER", "x")
    with pytest.raises(Invalid, match="did you mean `LEASEHOLD_STORE`"):
        await connect(tmp_path / "said")


async def test_a_bucket_is_found_by_the_usual_variables(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint"])
    monkeypatch.setenv("AWS_REGION", s3["region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" + s3["secret_access_key"])
    with pytest.raises(leasehold.Denied) as caught:
        await connect(bucket="python-tests", prefix="variables")
    assert "testsecret" not in str(caught.value)
    # As text, not as the XML of the response.
    assert "refuses these credentials" in str(caught.value) and "403" in str(caught.value)
    assert "<" not in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret_access_key"])
    async with await connect(bucket="python-tests", prefix="variables") as queue:
        assert repr(queue) == "<leasehold.Queue s3://python-tests/variables>"
        task = await queue.submit("greet")
        assert (await queue.get(task.id)).status == "pending"


async def test_secrets_are_in_no_repr(store: dict[str, Any]) -> None:
    async with await connect(**store) as queue:
        shown = repr(queue) + repr(Worker(queue, "w")) + str(vars(queue)) + str(vars(queue._loop))
        assert "testsecret" not in shown


async def test_a_thousand_submits_at_once_and_nothing_left_behind(folder: Path) -> None:
    tasks, threads = len(asyncio.all_tasks()), thread_count()
    queue = await connect(folder, durability="os")
    submitted = await asyncio.gather(*(queue.submit("count", number) for number in range(1_000)))
    assert len({each.id for each in submitted}) == 1_000
    worker = Worker(queue, concurrency=32)
    seen: list[int] = []

    @worker.task("count")
    async def count(ctx, input):
        seen.append(input)

    await worker.run(drain=True)
    assert sorted(seen) == list(range(1_000))
    assert thread_count() > threads
    await queue.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert len(asyncio.all_tasks()) == tasks
    # A thread that has ended is still counted for a moment.
    deadline = time.monotonic() + 20
    while thread_count() > threads and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    # Fewer, if a thread of an earlier test was still ending when this one started.
    assert thread_count() <= threads


def thread_count() -> int:
    """Number of threads of this process, including native ones."""
    return len(list(Path("/proc/self/task").iterdir()))


async def test_a_cancelled_call_is_aborted(folder: Path) -> None:
    async with await connect(folder) as queue:
        task = await queue.submit("greet")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.wait(task.id), 0.05)
        assert queue._loop._waiting == {}
        waiting = asyncio.create_task(queue.wait(task.id))
        await asyncio.sleep(0)
    with pytest.raises(Invalid, match="was closed"):
        await waiting


async def test_a_wait_sends_no_requests_after_its_queue_is_closed(folder: Path) -> None:
    # Another queue keeps the threads.
    async with await connect(folder, layout="objects"), await connect(folder) as queue:
        task = await queue.submit("greet")
        waiting = asyncio.create_task(queue.wait(task.id))
        await asyncio.sleep(0.2)
        # As `close` does, but the ledger can still be read.
        queue._loop.close()
        with pytest.raises(Invalid, match="was closed"):
            await waiting
        before = queue.ledger()
        await asyncio.sleep(2)
        assert queue.ledger() == before


def test_a_queue_can_be_closed_when_its_event_loop_is_gone(folder: Path) -> None:
    before = thread_count()

    async def opened() -> tuple[leasehold.Queue, Any]:
        queue = await connect(folder)
        task = await queue.submit("greet")
        waiting = asyncio.create_task(queue.wait(task.id))
        await asyncio.sleep(0)
        return queue, waiting

    loop = asyncio.new_event_loop()
    queue, waiting = loop.run_until_complete(opened())
    # Left pending on purpose.
    waiting._log_destroy_pending = False
    loop.close()
    asyncio.run(queue.close())
    with pytest.raises(Invalid, match="closed"):
        queue.now()
    deadline = time.monotonic() + 20
    while thread_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    # A thread of an earlier test may end meanwhile.
    assert thread_count() <= before


async def test_a_queue_belongs_to_its_event_loop(folder: Path) -> None:
    async with await connect(folder) as queue:

        def elsewhere() -> str:
            with pytest.raises(Invalid) as caught:
                asyncio.run(queue.stats())
            return str(caught.value)

        assert "opened on another event loop" in await asyncio.to_thread(elsewhere)

        def closes() -> str:
            with pytest.raises(Invalid) as caught:
                asyncio.run(queue.close())
            return str(caught.value)

        assert "opened on another event loop; close it there" in await asyncio.to_thread(closes)
        assert (await queue.stats()).due == 0


async def test_the_command_line_sees_the_same_queue(folder: Path) -> None:
    async with await connect(folder, by="a-program") as queue:
        task = await queue.submit("greet", {"name": "Ada"})
        shown = await asyncio.to_thread(command_line, "history", task.id, "--store", folder)
        assert "a-program" in shown.stdout


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


async def test_no_threads_are_left_behind() -> None:
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("leasehold")]
