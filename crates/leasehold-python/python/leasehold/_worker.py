"""Workers, which run handlers."""

from __future__ import annotations

import asyncio
import contextvars
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
from ._signals import forward_signals
from ._threads import Threads

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """Polling intervals: short while there is work, growing while the worker is idle.

    Fields that are `None` come from the settings (`[worker.polling]`).
    """

    strategy: Literal["adaptive", "fixed"] | None = None
    min_interval_ms: int | None = None
    max_interval_ms: int | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeasing:
    """Shard leasing: workers divide the shards among themselves.

    Fields that are `None` come from the settings (`[worker.shard_leasing]`).
    """

    shards_per_worker: int | None = None
    ttl_secs: int | None = None
    renew_interval_secs: int | None = None


class WorkerOptions(TypedDict, total=False):
    """Keyword arguments of `Worker`."""

    shard_range: str | None
    """Scan only these shards, such as `"00-3f"`. Default: all."""
    shard_leasing: bool | ShardLeasing | None
    """Divide the shards among all workers with this option. Default: False."""
    direct: bool | None
    """Create an inbox, into which producers put tasks for this worker only. Default: False."""
    concurrency: int | None
    """Maximum number of tasks that run at once. Default: 8."""
    lease_secs: int | None
    """Seconds until a claim expires unless it is renewed. Default: 60."""
    drain_secs: int | None
    """Seconds that handlers may continue after `stop()`. Default: 30."""
    stop_wait_secs: int | None
    """Seconds to wait for a cancelled handler to stop; after that its claim expires. Default: 10."""
    polling: Polling | None
    """Polling intervals. Default: 0.1 to 5 seconds."""


def _overrides(id: str | None, shards: Sequence[str] | None, options: WorkerOptions) -> dict[str, str]:
    """Converts the arguments to settings; most have the same name there."""
    for name in options.keys() - WorkerOptions.__annotations__.keys():
        raise TypeError(f"Worker() got an unexpected keyword argument {name!r}")
    if isinstance(shards, str):
        raise Invalid(f'shards must be a list, such as ["00", "01"], got {shards!r}; see also shard_range')
    overrides: dict[str, object] = {f"worker.{name}": value for name, value in options.items()}
    polling = overrides.pop("worker.polling", None) or Polling()
    leasing = overrides.pop("worker.shard_leasing", None)
    direct = overrides.pop("worker.direct", None)
    if not isinstance(polling, Polling):
        raise Invalid(f"polling must be a leasehold.Polling, got {type(polling).__name__}")
    if not isinstance(leasing, (bool, ShardLeasing, NoneType)):
        raise Invalid(f"shard_leasing must be a bool or a leasehold.ShardLeasing, got {type(leasing).__name__}")
    if not isinstance(direct, (bool, NoneType)):
        raise Invalid(f"direct must be a bool, got {type(direct).__name__}")
    shares = leasing if isinstance(leasing, ShardLeasing) else ShardLeasing()
    overrides |= {
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
    return settings(overrides)


class Worker:
    """Runs handlers for the tasks of a queue.

    Options that you do not pass come from the settings (`[worker]` in `leasehold.toml`, `LEASEHOLD_WORKER_…`).

    Args:
        queue: Queue to work on.
        id: Worker id. Default: random.
        shards: Only these shards. Default: all.
        **options: See `WorkerOptions`.
    """

    def __init__(
        self,
        queue: Queue,
        id: str | None = None,
        shards: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(queue, Queue):
            raise Invalid(f"queue must be a leasehold.Queue, as returned by `await connect(…)`, got {queue!r}")
        self.queue = queue
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._running: _Running | None = None
        self._overrides = _overrides(id, shards, options)

    def __repr__(self) -> str:
        return f"<leasehold.Worker on {self.queue!r} for {', '.join(self._handlers) or 'nothing yet'}>"

    def task(self, task_type: str, *, max_attempts: int | None = None) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Registers the decorated function as the handler of a task type.

        The function takes the context and the input. Its return value becomes the output and completes the task, unless
        the handler was cancelled and `Context.cancelled` has returned True. An exception fails the attempt; raise `Permanent`, `Retry`
        or `Snooze` to control what happens next. A function that is not async runs in a thread. If the input is
        annotated with a dataclass or a Pydantic model, the function gets an instance of it.

        Args:
            task_type: Type of the tasks; `"*"` for every type without a handler.
            max_attempts: Default for tasks submitted with the handler's `submit`, and upper limit for all others.
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
        """Runs until the worker is stopped or, with `drain`, until the queue is empty.

        The first Ctrl-C or SIGTERM is a `stop()`: handlers may finish within `drain_secs` (default: 30 s). The second is
        an `abort()`: handlers are cancelled and their tasks released. Cancelling this coroutine is an `abort()`, too.

        Args:
            drain: Return once no task is due now or within a minute and no other worker runs one of these types;
                unrelated to `drain_secs`.
            handle_signals: Handle Ctrl-C and SIGTERM.
        """
        if self._running is not None:
            raise Invalid("this worker is already running")
        running = _Running(self.queue, list(self._handlers.values()))
        self._running = running
        try:
            with forward_signals(running, handle_signals):
                return await running.run(self._overrides, drain)
        finally:
            self._running = None

    def stop(self) -> None:
        """Stops claiming tasks and lets handlers finish; then `run` returns."""
        if self._running is not None:
            self._running.native.drain()

    def abort(self) -> None:
        """Cancels handlers and releases their tasks."""
        if self._running is not None:
            self._running.native.abort()

    @property
    def name(self) -> str | None:
        """Worker id while the worker is running, otherwise `None`."""
        return None if self._running is None else self._running.native.name

    def counts(self) -> Counts | None:
        """Returns the counts so far while the worker is running, otherwise `None`."""
        return None if self._running is None else Counts(**json.loads(self._running.native.counts()))

    def served(self) -> list[tuple[str, str]]:
        """Returns the shard ranges that the worker serves now: first and last of each."""
        return [] if self._running is None else self._running.native.shards()


class _Running:
    """A running worker."""

    def __init__(self, queue: Queue, handlers: list[Handler[..., Any]]) -> None:
        self.native: _native.Worker
        self._ended: asyncio.Future[str]
        self._queue = queue
        self._handlers = handlers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._threads = Threads()
        # Handlers inherit the context variables of the caller of `run`.
        self._context = contextvars.copy_context()
        self._got_signal = False

    async def run(self, overrides: dict[str, str], drain: bool) -> Counts:
        loop = self._queue._loop
        number, ended = loop.register_call()
        self._ended = ended
        try:
            types = [handler.task_type for handler in self._handlers]
            self.native = checked(self._queue._native.work, loop.event_queue, number, overrides, types, drain)
            # From here on there is a worker to stop.
            loop.workers[number] = self
            try:
                return Counts(**json.loads(await asyncio.shield(ended)))
            except asyncio.CancelledError:
                # Cancels handlers and releases their tasks before the cancellation propagates.
                while not ended.done():
                    with suppress(asyncio.CancelledError):
                        await self.end()
                raise
        finally:
            loop.workers.pop(number, None)
            loop.forget(number)
            self._threads.end()

    def handle_signal(self) -> None:
        """Handles a signal: the first lets handlers finish, the second cancels them."""
        if self._got_signal:
            self.native.abort()
        else:
            self.native.drain()
        self._got_signal = True

    async def end(self) -> None:
        """Aborts the worker and waits for its end."""
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
            self._threads.start(lambda: context.run(run_sync, handler, run))

    def stop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()
