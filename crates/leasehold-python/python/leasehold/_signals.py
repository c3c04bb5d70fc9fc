"""Ctrl-C and SIGTERM, for all workers of an event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Obedient(Protocol):
    """Whoever is told of signals: a worker that runs."""

    def obey(self) -> None: ...


class _Signals:
    """An event loop has one handler of a signal, and may have many workers."""

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
    """Tells someone of signals, if wanted. Only where signals arrive: in the main thread."""
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
