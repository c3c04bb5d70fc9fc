"""Lists: corrupt records, abandoned lists, invalid filters."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from leasehold import Corrupt, Error, Invalid, connect, sync


def corrupt_record(folder: Path, id: str) -> None:
    (record,) = folder.glob(f"tasks/*/{id}.json")
    record.write_text("this is not a task")


async def test_a_corrupt_record_is_reported_and_the_list_continues(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await connect(folder, layout="objects") as queue:
        ids = [(await queue.submit("greet")).id for _ in range(3)]
        corrupt_record(folder, ids[1])
        found: list[Error] = []
        listed = {task.id async for task in queue.list(on_corrupt=found.append)}
        assert listed == {ids[0], ids[2]}
        assert [type(error) for error in found] == [Corrupt] and ids[1] in str(found[0])
        assert caplog.records == []

        assert {task.id async for task in queue.list()} == listed
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("leasehold", logging.WARNING)
        assert ids[1] in record.getMessage()

    def raise_it(error: Error) -> None:
        raise error

    with sync.connect(folder) as plain, pytest.raises(Corrupt, match=ids[1]):
        list(plain.list(on_corrupt=raise_it))


async def test_an_abandoned_list_keeps_no_threads(folder: Path) -> None:
    before = threads()
    queue = await connect(folder, durability="os")
    for _ in range(3):
        await queue.submit("greet")
    listed = queue.list()
    await anext(listed)
    await queue.close()
    # One thread waits for the others to end, and a thread that has ended is still counted for a moment.
    deadline = time.monotonic() + 20
    while threads() > before + 1 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert threads() <= before + 1
    with pytest.raises(Invalid, match="the queue is closed"):
        [task async for task in listed]


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"status": "nope"}, "`nope` is not a status"),
        ({"status": 5}, "invalid filter: invalid type: integer `5`, expected a string"),
        ({"task_type": 5}, "invalid filter"),
        ({"tags": {"a": 1}}, "invalid filter"),
        ({"tags": 5}, "invalid filter"),
        ({"task_type": "\ud800"}, "the filter cannot be written as JSON"),
        ({"limit": -1}, "limit must be a whole number, at least 0, got -1"),
        ({"limit": "5"}, "limit must be a whole number, at least 0, got '5'"),
    ],
)
async def test_an_invalid_filter_is_rejected(folder: Path, arguments: dict[str, Any], message: str) -> None:
    async with await connect(folder) as queue:
        await queue.submit("greet")
        with pytest.raises(Invalid, match=message):
            [task async for task in queue.list(**arguments)]
        assert [task async for task in queue.list(limit=0)] == []
