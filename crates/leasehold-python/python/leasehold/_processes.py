"""Handlers in processes of their own, for tasks that keep a core busy or may crash.

```text
  thread of the handler, in the worker             process
    RunTask ─────────────────────────────────────▶ finds the function, runs it with middleware
    calls the method of the native run ◀── Call ── progress, directory, publish, …
    Outcome ─────────────────────────────────────▶
    Cancel ──────────────────────────────────────▶ `ctx.cancelled` is true; killed if it does not end
    records the result ◀──────────────── Outcome ─
```

A process runs one task at a time and is used again. If it ends by itself, only its own task has failed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from ._child import SIGNALS, serve
from ._handlers import Context, ContextRun
from ._pipe import Cancel, End, Outcome, RunTask, outcome_of

if TYPE_CHECKING:
    from ._task_function import TaskFunction

STOP_SECS = 5.0
"""Time for a handler to end after its cancellation. Shorter than `stop_wait_secs`, so that its task is released."""
_INTERVAL_SECS = 0.1


class ProcessEnded(Exception):
    """The process of a handler ended by itself: the handler called `os._exit`, or the system killed the process."""


class Processes:
    """Processes of a worker."""

    def __init__(self) -> None:
        self._spawn = multiprocessing.get_context("spawn")
        # The system ends a process when the thread that started it ends: a thread of a handler would not live long enough.
        # A process inherits its blocked signals, and is not ended by one while it starts.
        self._starter = concurrent.futures.ThreadPoolExecutor(
            1, "leasehold-processes", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        )
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_open = True

    def run(self, task: TaskFunction[..., Any, Any], ctx: Context, input: Any) -> Any:
        """Runs the handler of a task in a process and returns its output."""
        process = self._take()
        try:
            result = process.run(task, ctx, input)
        except BaseException:
            self._drop(process)
            raise
        with self._lock:
            self._idle.append(process)
        return result.get()

    def close(self) -> None:
        """Ends all processes. Handlers have ended, or were abandoned."""
        with self._lock:
            self._is_open = False
            processes = list(self._all)
            idle = list(self._idle)
        for each in idle:
            each.end()
        for each in processes:
            self._drop(each)
        self._starter.shutdown()

    def _take(self) -> _Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive():
                    return process
                self._all.discard(process)
        process = self._starter.submit(_Process, self._spawn).result()
        with self._lock:
            if self._is_open:
                self._all.add(process)
                return process
        process.kill()
        raise asyncio.CancelledError("the worker has ended")

    def _drop(self, process: _Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()


class _Process:
    """A process, seen from the worker."""

    def __init__(self, spawn: Any) -> None:
        self._connection, other = spawn.Pipe()
        self._process: BaseProcess = spawn.Process(
            target=serve, args=(other, os.getpid()), name="leasehold-handler"
        )
        self._process.start()
        other.close()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        """Ends an idle process, with its lifespans."""
        with contextlib.suppress(OSError):
            self._connection.send(End())
        self._process.join(STOP_SECS)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def run(self, task: TaskFunction[..., Any, Any], ctx: Context, input: Any) -> Outcome:
        """Runs a handler to its end.

        Raises:
            ProcessEnded: If the process has ended by itself.
            asyncio.CancelledError: If it was killed because the handler did not stop.
        """
        run = ctx._run
        module = task.function.__module__
        try:
            self._connection.send(RunTask(module, task.name, input, run.id, run.attempt, run.epoch, run.task()))
            return self._serve(run)
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise ProcessEnded(f"the process of the handler {how}") from None

    def _serve(self, run: ContextRun) -> Outcome:
        stops_at: float | None = None
        while True:
            if stops_at is None and run.is_cancelled():
                self._connection.send(Cancel())
                stops_at = time.monotonic() + STOP_SECS
            if stops_at is not None and time.monotonic() > stops_at:
                raise asyncio.CancelledError("the handler did not stop, and its process was killed")
            if not self._connection.poll(_INTERVAL_SECS):
                continue
            message = self._connection.recv()
            if isinstance(message, Outcome):
                return message
            self._connection.send(outcome_of(lambda: getattr(run, message.method)(*message.args)))
