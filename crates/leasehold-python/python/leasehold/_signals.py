"""Handling of Ctrl-C and SIGTERM for all workers of an event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class SignalReceiver(Protocol):
    """Receiver of signals: a running worker."""

    def handle_signal(self) -> None: ...


class _Signals:
    """Signal handlers of one event loop: a loop has one handler per signal, but may have many workers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.receivers: list[SignalReceiver] = []
        self._loop = weakref.ref(loop)
        self._before: dict[signal.Signals, Any] = {}

    def add(self, receiver: SignalReceiver) -> None:
        self.receivers.append(receiver)
        loop = self._loop()
        if len(self.receivers) > 1 or loop is None:
            return
        self._before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        for each in self._before:
            loop.add_signal_handler(each, self._dispatch)

    def remove(self, receiver: SignalReceiver) -> None:
        self.receivers.remove(receiver)
        loop = self._loop()
        if self.receivers or loop is None:
            return
        for each, handler in self._before.items():
            loop.remove_signal_handler(each)
            if handler is not None:
                signal.signal(each, handler)

    def _dispatch(self) -> None:
        for receiver in list(self.receivers):
            receiver.handle_signal()


_signals_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Signals] = weakref.WeakKeyDictionary()


@contextmanager
def forward_signals(receiver: SignalReceiver, wanted: bool) -> Iterator[None]:
    """Forwards signals to `receiver` if `wanted`. Does nothing outside the main thread, where no signals arrive."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = _signals_by_loop.setdefault(loop, _Signals(loop))
    signals.add(receiver)
    try:
        yield
    finally:
        signals.remove(receiver)
