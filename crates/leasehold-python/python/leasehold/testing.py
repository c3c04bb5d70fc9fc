"""A queue for your own tests: in memory, in a time that passes without waiting.

    from leasehold import Worker, testing

    async with await testing.queue() as queue:
        ...
        await queue.advance(3600)

Time stands still while your code runs, handlers included. While you wait for the queue and nothing can happen, it jumps
to the next moment that something waits for: a retry after a minute costs no minute. `advance` moves it on. Every test
begins on 2026-01-01, and chance is the same in every run. Neither files nor variables count.
"""

from __future__ import annotations

from typing import Any

from . import _native
from ._loop import Loop
from ._queue import Queue, Seconds, opened, seconds, settings

__all__ = ["TestQueue", "queue"]


class TestQueue(Queue):
    """A queue in memory whose time the test moves."""

    __test__ = False

    async def advance(self, duration: Seconds) -> None:
        """Lets so much time pass."""
        await self._loop.call(self._native.advance, seconds("time", duration))


async def queue(*, shard_prefix_len: int | None = None, by: str | None = None) -> TestQueue:
    """An empty queue."""
    said: dict[str, Any] = {"queue.shard_prefix_len": shard_prefix_len}
    loop = Loop()
    try:
        plain = await opened(loop, _native.Queue.for_test, settings(said), by)
    except BaseException:
        loop.close()
        raise
    return TestQueue(plain._loop, plain._native, plain._about)
