"""Handling of Ctrl-C and SIGTERM for all workers of an event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Obedient(Protocol):
    """Receiver of signals: a running worker."""

    def obey(self) -> None: ...


class _Signals:
    """Signal handlers of one event loop: a loop has one handler per signal, but may have many workers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.obedient: list[Obedient] = []
        self._loop = weakref.ref(loop)
        self._before: dict[signal.Signals, Any] = {}

    def begin(self, who: Obedient) -> None:
        self.obedient.append(who)
        loop = self._loop()
        if len(self.obedient) > 1 or loop is None:
            return
        self._before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        for each in self._before:
            loop.add_signal_handler(each, self._obey)

    def end(self, who: Obedient) -> None:
        self.obedient.remove(who)
        loop = self._loop()
        if self.obedient or loop is None:
            return
        for each, handler in self._before.items():
            loop.remove_signal_handler(each)
            if handler is not None:
                signal.signal(each, handler)

    def _obey(self) -> None:
        for who in list(self.obedient):
            who.obey()


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Signals] = weakref.WeakKeyDictionary()


@contextmanager
def obeying(who: Obedient, wanted: bool) -> Iterator[None]:
    """Forwards signals to `who` if `wanted`. Does nothing outside the main thread, where no signals arrive."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = _of_loops.setdefault(loop, _Signals(loop))
    signals.begin(who)
    try:
        yield
    finally:
        signals.end(who)
