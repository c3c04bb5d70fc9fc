"""Thread pool for sync handlers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Threads:
    """One thread per running handler; the native module limits their number.

    Unlike the threads of `concurrent.futures`, they do not keep the process alive. If a handler still runs when its worker
    has ended, it has ignored its cancellation: nothing waits for its result, and its claim is left to expire.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def start(self, work: Callable[[], object]) -> None:
        """Runs `work` on an idle thread, or on a new one."""
        if not self._idle.acquire(blocking=False):
            name = f"leasehold-handler-{self._count}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
            self._count += 1
        self._work.put(work)

    def end(self) -> None:
        """Ends each thread once it is idle. Does not wait."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            # Drops the reference while the thread is idle.
            del work
            self._idle.release()
