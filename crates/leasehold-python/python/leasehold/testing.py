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

import contextlib
import json
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from . import _native, sync
from ._app import Leasehold
from ._handlers import Context
from ._loop import Loop
from ._queue import Queue, Seconds, open_queue, seconds, settings

__all__ = ["SyncTestQueue", "TestQueue", "connected", "context", "queue"]


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


class SyncTestQueue(sync.Queue):
    """Blocking version of `TestQueue`."""

    __test__ = False

    def advance(self, duration: Seconds) -> None:
        """Moves the queue's time forward by `duration`."""
        assert isinstance(self._queue, TestQueue)
        self._thread.run(self._queue.advance(duration))


@contextlib.contextmanager
def connected(app: Leasehold) -> Iterator[SyncTestQueue]:
    """Connects an application to an empty in-memory queue, until the end of the `with` block.

        with testing.connected(app) as queue:
            sign_up("ada@example.org")             # submits
            assert app.work(drain=True).completed == 1
    """
    thread = sync._Thread()
    try:
        memory = SyncTestQueue(thread, thread.run(queue()))
    except BaseException:
        thread.end()
        raise
    try:
        app._connection.replace(memory)
    except BaseException:
        memory.close()
        raise
    try:
        yield memory
    finally:
        app.close()


def context(*, attempt: int = 1, max_attempts: int = 4, task_type: str = "test", cancelled: bool = False) -> Context:
    """Returns a context for a handler that a test calls directly.

    Progress and results are checked and dropped. The directory is removed with the context.
    """
    return Context(_DirectRun(attempt, max_attempts, task_type, cancelled))


class _DirectRun:
    """Run without a queue."""

    id = "00000000-0000-4000-8000-000000000000"
    epoch = 1

    def __init__(self, attempt: int, max_attempts: int, task_type: str, cancelled: bool) -> None:
        self.attempt = attempt
        self._max_attempts = max_attempts
        self._task_type = task_type
        self._cancelled = cancelled
        self._directory: str | None = None

    def task(self) -> str:
        now = "2026-01-01T00:00:00+00:00"
        retry_policy = {"initial_secs": 1.0, "factor": 2.0, "max_secs": 300.0, "jitter": 0.2}
        return json.dumps({
            "id": self.id, "task_type": self._task_type, "shard": "0", "status": "running", "input": None,
            "attempt": self.attempt, "max_attempts": self._max_attempts, "epoch": self.epoch, "rev": 1, "priority": 5,
            "created_at": now, "updated_at": now, "retry_policy": retry_policy, "history": [],
        })

    def is_cancelled(self) -> bool:
        return self._cancelled

    def progress(self, progress: str) -> None:
        json.loads(progress)

    def artifacts(self) -> Mapping[str, str]:
        return {}

    def directory(self) -> str:
        if self._directory is None:
            directory = tempfile.TemporaryDirectory(prefix="leasehold-")
            weakref.finalize(self, directory.cleanup)
            self._directory = directory.name
        return self._directory

    def publish(self, name: str, path: str) -> None:
        with open(path, "rb"):
            pass

    def extend(self) -> None:
        pass
