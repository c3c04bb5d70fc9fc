"""Calls into the native module, and delivery of its events, on one event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from . import _native
from ._errors import Internal, Invalid, from_text

T = TypeVar("T")


class RunReceiver(Protocol):
    """Runs handlers: a worker."""

    def begin(self, run: _native.Run) -> None: ...

    def stop(self, number: int) -> None: ...

    async def end(self) -> None: ...


class Loop:
    """Event queue of one event loop, and the futures that wait for answers.

    The native module never calls into Python. It makes the event queue readable, and the loop collects the events.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.event_queue = _native.EventQueue()
        self.numbers = itertools.count()
        self.workers: dict[int, RunReceiver] = {}
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._is_open = True
        self._process = os.getpid()
        self.loop.add_reader(self.event_queue.fileno(), self._collect)

    def _collect(self) -> None:
        answers, runs, stops, lines = self.event_queue.collect()
        for number, text, error in answers:
            future = self._waiting.get(number)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(text or "null")
            else:
                future.set_exception(from_text(error))
        for run in runs:
            worker = self.workers.get(run.worker)
            # A run that is not started is released by being dropped.
            if worker is not None:
                worker.begin(run)
        for number, stopped in stops:
            worker = self.workers.get(number)
            if worker is not None:
                worker.stop(stopped)
        # Last, because a log filter of the application may raise. Waiters for answers are resumed after this.
        _log(lines)

    def register_call(self) -> tuple[int, asyncio.Future[str]]:
        """Returns a number for a call, and the future of its answer."""
        if not self._is_open:
            raise Invalid("the queue is closed")
        if asyncio.get_running_loop() is not self.loop:
            raise Invalid("this queue was opened on another event loop; connect on this one")
        number = next(self.numbers)
        future: asyncio.Future[str] = self.loop.create_future()
        self._waiting[number] = future
        return number, future

    def forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    async def call(self, start: Callable[..., _native.Call], *args: object) -> Any:
        """Starts a call and waits for its answer. The call is aborted if the wait is cancelled or the queue closed."""
        number, future = self.register_call()
        try:
            call = checked(start, self.event_queue, number, *args)
            try:
                return json.loads(await future)
            except BaseException:
                call.cancel()
                raise
        finally:
            self.forget(number)

    def check_close(self) -> None:
        """Rejects closing from another event loop while the queue's own is running."""
        if self.loop.is_running() and asyncio.get_running_loop() is not self.loop:
            raise Invalid("this queue was opened on another event loop; close it there")

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._process == os.getpid():
            # In a forked child this would remove the reader of the parent, too.
            self.loop.remove_reader(self.event_queue.fileno())
            # Lines logged since the loop last ran. Collected runs are released by being dropped.
            _log(self.event_queue.collect()[3])
        self.event_queue.close()
        for future in self._waiting.values():
            # A closed loop has no waiters left.
            if not future.done() and not self.loop.is_closed():
                future.set_exception(Invalid("the queue was closed"))


def checked(start: Callable[..., T], *args: object) -> T:
    """Calls the native module and converts its immediate errors to exceptions of this package."""
    try:
        return start(*args)
    except _native.Failure as failure:
        raise from_text(str(failure)) from None
    except _native.Panic as panic:
        raise Internal(f"internal error: {panic}; please report it") from None


def _log(lines: list[tuple[int, str, str]]) -> None:
    for level, logger, text in lines:
        logging.getLogger(logger).log(level, "%s", text)
