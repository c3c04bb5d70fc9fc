"""Process of handlers: runs the tasks that its worker sends, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import importlib
import json
import os
import queue
import signal
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ._errors import Invalid
from ._handlers import Context, encode_output
from ._pipe import Call, Cancel, End, Outcome, RunTask, outcome_of

if TYPE_CHECKING:
    from ._task_function import TaskFunction

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that may be sent to a worker and all its processes."""
_PR_SET_PDEATHSIG = 1
"""Option of the system call `prctl`."""


class _RemoteRun:
    """Run of a task in the worker, seen from the process."""

    def __init__(self, message: RunTask, process: _Served) -> None:
        self.id = message.id
        self.attempt = message.attempt
        self.epoch = message.epoch
        self._task = message.task
        self._process = process

    def task(self) -> str:
        return self._task

    def is_cancelled(self) -> bool:
        return self._process.is_cancelled.is_set()

    def progress(self, progress: str) -> None:
        self._process.call(self, "progress", progress)

    def artifacts(self) -> dict[str, str]:
        found: dict[str, str] = self._process.call(self, "artifacts")
        return found

    def directory(self) -> str:
        path: str = self._process.call(self, "directory")
        return path

    def publish(self, name: str, path: str) -> None:
        self._process.call(self, "publish", name, path)

    def extend(self) -> None:
        self._process.call(self, "extend")


class _Served:
    """The worker, seen from the process."""

    def __init__(self, connection: Connection) -> None:
        self.tasks: queue.SimpleQueue[RunTask | None] = queue.SimpleQueue()
        self.is_cancelled = threading.Event()
        self._connection = connection
        self._replies: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._run: _RemoteRun | None = None
        threading.Thread(target=self._read, name="leasehold-process", daemon=True).start()

    def begin(self, run: _RemoteRun) -> None:
        self._run = run

    def call(self, run: _RemoteRun, method: str, *args: Any) -> Any:
        """Calls a method of the native run in the worker."""
        with self._lock:
            if self._run is not run:
                # A thread of the handler that goes on after it.
                raise Invalid("the run of this context has ended")
            self._connection.send(Call(method, args))
            return self._replies.get().get()

    def end(self, outcome: Outcome) -> None:
        with self._lock:
            self._run = None
            self._connection.send(outcome)

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, RunTask):
                    self.is_cancelled.clear()
                    self.tasks.put(message)
                elif isinstance(message, Cancel):
                    self.is_cancelled.set()
                elif isinstance(message, End):
                    self.tasks.put(None)
                else:
                    self._replies.put(message)
        except (EOFError, OSError):
            # The worker has ended.
            os._exit(1)


def serve(connection: Connection, worker: int) -> None:
    """Runs tasks until the worker ends. The main function of the process."""
    # The worker gets these signals, too, and lets the handler finish. Not ignored, which programs that a handler starts would
    # inherit. They were blocked until now.
    for each in SIGNALS:
        signal.signal(each, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # A handler that holds the interpreter's lock would delay the thread that notices the end of the worker.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(1)
    served, entered = _Served(connection), set[int]()
    with contextlib.ExitStack() as lifespans:
        while (message := served.tasks.get()) is not None:
            served.end(outcome_of(functools.partial(_run, message, served, lifespans, entered)))


def _run(message: RunTask, served: _Served, lifespans: contextlib.ExitStack, entered: set[int]) -> Any:
    from ._app import handler_of

    task = _find(message.module, message.name)
    if id(task.app) not in entered:
        # If a lifespan fails, the attempt has failed, and the next task tries again.
        with contextlib.ExitStack() as fresh:
            fresh.callback(task.app.close)
            task.app._enter_lifespans(fresh, None)
            lifespans.enter_context(fresh.pop_all())
        entered.add(id(task.app))
    run = _RemoteRun(message, served)
    served.begin(run)
    context = Context(run)
    output = handler_of(task)(context, message.input)
    # As in a thread: it has noticed its cancellation, and stopped.
    if context._saw_cancel:
        raise asyncio.CancelledError("the handler was cancelled")
    return json.loads(encode_output(output))


def _find(module: str, name: str) -> TaskFunction[..., Any, Any]:
    from ._task_function import TaskFunction

    for value in vars(importlib.import_module(module)).values():
        if isinstance(value, TaskFunction) and value.name == name:
            return value
    raise Invalid(f"`{module}` has no task `{name}` at module level, which a handler in a process needs")
