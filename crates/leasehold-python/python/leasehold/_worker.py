"""Workers: they run handlers."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from . import _native
from ._errors import Invalid
from ._handlers import Handler, check_task, names_around, run_async, run_sync
from ._loop import checked
from ._models import Counts
from ._queue import Queue, settings
from ._signals import obeying
from ._threads import Threads

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How often to look for work: quickly while there is some, more and more slowly while there is none."""

    strategy: Literal["adaptive", "fixed"] | None = None
    min_interval_ms: int | None = None
    max_interval_ms: int | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeasing:
    """Dividing the shards with all workers that do so."""

    shards_per_worker: int | None = None
    ttl_secs: int | None = None
    renew_interval_secs: int | None = None


class WorkerOptions(TypedDict, total=False):
    """What `Worker` takes by name."""

    shard_range: str | None
    """Only these shards, such as `"00-3f"`."""
    shard_leasing: bool | ShardLeasing | None
    """Workers divide the shards among themselves."""
    direct: bool | None
    """The worker has an inbox, into which producers put tasks for it alone."""
    concurrency: int | None
    """How many tasks run at once."""
    lease_secs: int | None
    """How long a claim lasts without renewal."""
    drain_secs: int | None
    """How long handlers may go on after the worker was asked to stop."""
    stop_wait_secs: int | None
    """How long a handler that was told to stop is waited for; then its claim is left to run out."""
    polling: Polling | None
    """How often to look for work."""


def _said(id: str | None, shards: Sequence[str] | None, options: WorkerOptions) -> dict[str, str]:
    """What was said, as settings: most options are called as they are there."""
    for name in options.keys() - WorkerOptions.__annotations__.keys():
        raise TypeError(f"Worker() got an unexpected keyword argument {name!r}")
    if isinstance(shards, str):
        raise Invalid(f'shards is a list, such as ["00", "01"], not the text {shards!r}; see also shard_range')
    said: dict[str, object] = {f"worker.{name}": value for name, value in options.items()}
    polling = said.pop("worker.polling", None) or Polling()
    leasing = said.pop("worker.shard_leasing", None)
    direct = said.pop("worker.direct", None)
    if not isinstance(polling, Polling):
        raise Invalid(f"polling is a leasehold.Polling, not {type(polling).__name__}")
    if not isinstance(leasing, (bool, ShardLeasing, NoneType)):
        raise Invalid(f"shard_leasing is true, false or a leasehold.ShardLeasing, not {type(leasing).__name__}")
    if not isinstance(direct, (bool, NoneType)):
        raise Invalid(f"direct is true or false, not {type(direct).__name__}")
    shares = leasing if isinstance(leasing, ShardLeasing) else ShardLeasing()
    said |= {
        "worker.id": id,
        "queue.dispatch_mode": None if direct is None else "direct" if direct else "shared",
        "worker.shards": None if shards is None else list(shards),
        "worker.polling.strategy": polling.strategy,
        "worker.polling.min_interval_ms": polling.min_interval_ms,
        "worker.polling.max_interval_ms": polling.max_interval_ms,
        "worker.polling.factor": polling.factor,
        "worker.shard_leasing.enabled": None if leasing is None else bool(leasing),
        "worker.shard_leasing.shards_per_worker": shares.shards_per_worker,
        "worker.shard_leasing.lease_ttl_secs": shares.ttl_secs,
        "worker.shard_leasing.lease_renew_interval_secs": shares.renew_interval_secs,
    }
    return settings(said)


class Worker:
    """Runs handlers for the tasks of a queue.

    Whatever is not said here is as the settings say (`[worker]` in `leasehold.toml`, `LEASEHOLD_WORKER_…`). Without an
    id it gets one made by chance. `shards` restricts it to some shards; `WorkerOptions` has what else can be said.
    """

    def __init__(
        self,
        queue: Queue,
        id: str | None = None,
        shards: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(queue, Queue):
            raise Invalid(f"a worker needs a queue, as `await connect(…)` gives it, not {queue!r}")
        self.queue = queue
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._running: _Running | None = None
        self._said = _said(id, shards, options)

    def __repr__(self) -> str:
        return f"<leasehold.Worker on {self.queue!r} for {', '.join(self._handlers) or 'nothing yet'}>"

    def task(self, task_type: str, *, max_attempts: int | None = None) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Makes a function the handler of a task type; `"*"` is for every type that has none.

        It gets the context and the input. What it returns completes the task, unless it was asked to stop and has seen
        that (`Context.cancelled`). What it raises fails the attempt (`Permanent`, `Retry` and `Snooze` say more). A
        function that is not async runs in a thread. If the input is annotated with a dataclass or a Pydantic model, it
        gets one.

        `max_attempts` is how many attempts tasks get that are submitted by the handler's own `submit`, and the most that
        this worker makes of any other.
        """

        check_task(task_type, max_attempts)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            return self._add(task_type, function, max_attempts, names_around())

        return decorate

    def _add(
        self,
        task_type: str,
        function: Callable[P, R],
        max_attempts: int | None,
        names: Mapping[str, Any] | None,
    ) -> Handler[P, R]:
        if task_type in self._handlers:
            raise Invalid(f"task type `{task_type}` has two handlers")
        if isinstance(function, Handler):
            # One function for several types.
            function = function.function
        handler = Handler(self.queue, task_type, function, max_attempts, names)
        self._handlers[task_type] = handler
        return handler

    async def run(self, *, drain: bool = False, handle_signals: bool = True) -> Counts:
        """Works until told to stop, or, with `drain`, until there is nothing left to do.

        Ctrl-C and SIGTERM let handlers finish (`drain_secs`, by default 30 s); a second one stops them, and their tasks
        go back. So do `stop()` and `abort()`. If the task of asyncio that runs this is cancelled, that is an `abort`.
        """
        if self._running is not None:
            raise Invalid("this worker runs already")
        running = _Running(self.queue, list(self._handlers.values()))
        self._running = running
        try:
            with obeying(running, handle_signals):
                return await running.run(self._said, drain)
        finally:
            self._running = None

    def stop(self) -> None:
        """Claims nothing new, and lets handlers finish; `run` returns when they have."""
        if self._running is not None:
            self._running.native.drain()

    def abort(self) -> None:
        """Stops handlers, and gives their tasks back."""
        if self._running is not None:
            self._running.native.abort()

    @property
    def name(self) -> str | None:
        """Its name while it runs."""
        return None if self._running is None else self._running.native.name

    def counts(self) -> Counts | None:
        """What it has done so far, while it runs."""
        return None if self._running is None else Counts(**json.loads(self._running.native.counts()))

    def served(self) -> list[tuple[str, str]]:
        """The ranges of shards that it serves at this moment: first and last of each."""
        return [] if self._running is None else self._running.native.shards()


class _Running:
    """A worker while it runs."""

    def __init__(self, queue: Queue, handlers: list[Handler[..., Any]]) -> None:
        self.native: _native.Worker
        self._ended: asyncio.Future[str]
        self._queue = queue
        self._handlers = handlers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._threads = Threads()
        # Handlers see the context variables of whoever runs the worker.
        self._context = contextvars.copy_context()
        self._was_told = False

    async def run(self, said: dict[str, str], drain: bool) -> Counts:
        loop = self._queue._loop
        number, ended = loop.expect()
        self._ended = ended
        try:
            types = [handler.task_type for handler in self._handlers]
            self.native = checked(self._queue._native.work, loop.mailbox, number, said, types, drain)
            # Only now is there something to stop.
            loop.workers[number] = self
            try:
                return Counts(**json.loads(await asyncio.shield(ended)))
            except asyncio.CancelledError:
                # Handlers are stopped and tasks given back before the cancellation goes on.
                while not ended.done():
                    with suppress(asyncio.CancelledError):
                        await self.end()
                raise
        finally:
            loop.workers.pop(number, None)
            loop.forget(number)
            self._threads.end()

    def obey(self) -> None:
        """A signal lets handlers finish; another one stops them."""
        if self._was_told:
            self.native.abort()
        else:
            self.native.drain()
        self._was_told = True

    async def end(self) -> None:
        """Aborts, and waits for the end."""
        self.native.abort()
        if not self._ended.done():
            await asyncio.wait([self._ended])

    def begin(self, run: _native.Run) -> None:
        handler, context = self._handlers[run.handler], self._context.copy()
        if handler.is_async:
            task = asyncio.get_running_loop().create_task(run_async(handler, run), context=context)
            self._tasks[run.number] = task
            task.add_done_callback(lambda _: self._tasks.pop(run.number, None))
        else:
            self._threads.start(functools.partial(context.run, run_sync, handler, run))

    def stop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()
