"""Lists: what cannot be read, what is left halfway, what makes no sense."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from leasehold import Corrupt, Error, Invalid, connect, sync


def spoil(folder: Path, id: str) -> None:
    (record,) = folder.glob(f"tasks/*/{id}.json")
    record.write_text("this is not a task")


async def test_what_cannot_be_read_as_a_task_is_told_and_the_list_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await connect(folder) as queue:
        ids = [(await queue.submit("greet")).id for _ in range(3)]
        spoil(folder, ids[1])
        found: list[Error] = []
        listed = {task.id async for task in queue.list(on_corrupt=found.append)}
        assert listed == {ids[0], ids[2]}
        assert [type(error) for error in found] == [Corrupt] and ids[1] in str(found[0])
        assert caplog.records == []

        assert {task.id async for task in queue.list()} == listed
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("leasehold", logging.WARNING)
        assert ids[1] in record.getMessage()

    def complain(error: Error) -> None:
        raise error

    with sync.connect(folder) as plain, pytest.raises(Corrupt, match=ids[1]):
        list(plain.list(on_corrupt=complain))


async def test_a_list_that_is_left_halfway_keeps_nothing(folder: Path) -> None:
    before = threads()
    queue = await connect(folder, durability="os")
    for _ in range(3):
        await queue.submit("greet")
    listed = queue.list()
    await anext(listed)
    await queue.close()
    # One thread has waited for the others to end, and one that has ended is still counted for a moment.
    deadline = time.monotonic() + 20
    while threads() > before + 1 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert threads() <= before + 1
    with pytest.raises(Invalid, match="the queue is closed"):
        [task async for task in listed]


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"status": "nope"}, "`nope` is not a status"),
        ({"status": 5}, "does not say which tasks: invalid type: integer `5`, expected a string"),
        ({"task_type": 5}, "does not say which tasks"),
        ({"tags": {"a": 1}}, "does not say which tasks"),
        ({"tags": 5}, "does not say which tasks"),
        ({"task_type": "\ud800"}, "the filter cannot be written as JSON"),
        ({"limit": -1}, "limit -1 is not a number of tasks"),
        ({"limit": "5"}, "limit '5' is not a number of tasks"),
    ],
)
async def test_a_list_of_what_makes_no_sense_is_refused(folder: Path, said: dict[str, Any], message: str) -> None:
    async with await connect(folder) as queue:
        await queue.submit("greet")
        with pytest.raises(Invalid, match=message):
            [task async for task in queue.list(**said)]
        assert [task async for task in queue.list(limit=0)] == []
