"""Threads for handlers that are not async."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Threads:
    """As many threads as there are handlers at once; the native half bounds those.

    Unlike those of `concurrent.futures`, they do not keep the process from ending: a handler that runs on when its
    worker has ended did not stop when it was told to, and its claim is given up already.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def start(self, work: Callable[[], object]) -> None:
        """Has it done by a thread that has nothing to do, or by a new one."""
        if not self._idle.acquire(blocking=False):
            name = f"leasehold-handler-{self._count}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
            self._count += 1
        self._work.put(work)

    def end(self) -> None:
        """Each thread ends when it has nothing to do any more; nobody waits for that."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            # Nothing of it is kept while there is nothing to do.
            del work
            self._idle.release()
