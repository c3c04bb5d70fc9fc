"""In-memory queue with simulated time, for your tests.

    from leasehold import Worker, testing

    async with await testing.queue() as queue:
        ...
        await queue.advance(3600)

Time stands still while your code runs, handlers included. While you wait for the queue and nothing else can run, time
jumps to the next timer: a retry after a minute does not take a minute. `advance` moves time forward. Every queue starts
at 2026-01-01, and random numbers are the same in every run. Settings files and environment variables are ignored.
"""

from __future__ import annotations

from typing import Any

from . import _native
from ._loop import Loop
from ._queue import Queue, Seconds, open_queue, seconds, settings

__all__ = ["TestQueue", "queue"]


class TestQueue(Queue):
    """In-memory queue whose time is controlled by the test."""

    __test__ = False

    async def advance(self, duration: Seconds) -> None:
        """Moves the queue's time forward by `duration`."""
        await self._loop.call(self._native.advance, seconds("duration", duration))


async def queue(*, shard_prefix_len: int | None = None, by: str | None = None) -> TestQueue:
    """Creates an empty in-memory queue.

    Args:
        shard_prefix_len: Number of hex digits of a shard name, 1 to 4. Default: 1.
        by: Name of the caller in the history of tasks. Default: `python`.
    """
    overrides: dict[str, Any] = {"queue.shard_prefix_len": shard_prefix_len}
    loop = Loop()
    try:
        plain = await open_queue(loop, _native.Queue.for_test, settings(overrides), by)
    except BaseException:
        loop.close()
        raise
    return TestQueue(plain._loop, plain._native, plain._about)
