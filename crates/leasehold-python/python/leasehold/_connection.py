"""Connection of an application: one queue per process, opened when it is first needed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from . import sync
from ._errors import Invalid
from ._queue import ConnectOptions, Queue

T = TypeVar("T")

_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
_abandoned: list[sync.Queue] = []
"""Queues of a parent process. Not released in its forks: their locks may be held by threads that a fork does not have."""


class Connection:
    """A queue with its own thread, for all threads and event loops of a process."""

    def __init__(self, store: str | os.PathLike[str] | None, options: ConnectOptions) -> None:
        self._open: Callable[[], sync.Queue] = lambda: sync.connect(store, **options)
        self._lock = threading.RLock()
        self._queue: sync.Queue | None = None
        _connections.add(self)

    def queue(self) -> sync.Queue:
        """Returns the queue, and opens it if necessary."""
        queue = self._queue
        if queue is not None:
            return queue
        with self._lock:
            if self._queue is None:
                self._queue = self._open()
            return self._queue

    def call(self, work: Callable[[Queue], Coroutine[Any, Any, T]], instead: str) -> T:
        """Does some work on the queue's event loop and waits for it.

        Raises:
            Invalid: In async code, whose event loop would be blocked; the message names what to write `instead`.
        """
        refuse_in_async_code(instead)
        queue = self.queue()
        return queue._thread.run(work(queue._queue))

    async def call_async(self, work: Callable[[Queue], Coroutine[Any, Any, T]]) -> T:
        """Does some work on the queue's event loop, for async code on any event loop."""
        queue = self._queue
        if queue is None:
            # Opening waits for the store.
            queue = await asyncio.to_thread(self.queue)
        return await queue._thread.run_async(work(queue._queue))

    def replace(self, queue: sync.Queue) -> None:
        """Uses an open queue instead, until this connection is closed."""
        with self._lock:
            if self._queue is not None:
                raise Invalid("the application is already connected; close it first")
            self._queue = queue

    def close(self) -> None:
        """Closes the queue; the next call opens it again."""
        with self._lock:
            queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def _abandon(self) -> None:
        self._lock = threading.RLock()
        if self._queue is not None:
            _abandoned.append(self._queue)
            self._queue = None


def refuse_in_async_code(instead: str) -> None:
    """Refuses a call that would block a running event loop; the message names what to write `instead`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Invalid(f"this call would block the running event loop: in async code, write `await {instead}`")


def _close_all() -> None:
    """Closes all connections at exit: a process that has the broker of a journal would otherwise leave its lease to expire."""
    for connection in list(_connections):
        connection.close()


def _abandon_all() -> None:
    """Forgets the connections of the parent process in a fork."""
    for connection in list(_connections):
        connection._abandon()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_abandon_all)
