"""Workers: they run handlers."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import logging
import threading
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack

from . import _models, _native
from ._errors import Invalid, Permanent, Retry, Snooze
from ._json import encode, fit
from ._loop import checked
from ._models import Counts, Submitted, Task
from ._queue import Queue, Seconds, SubmitOptions, seconds, settings
from ._signals import obeying
from ._threads import Threads

log = logging.getLogger("leasehold")

ERROR_BYTES_MAX = 4_096
"""So much of an error is kept in a task."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How often to look for work: quickly while there is some, more and more slowly while there is none."""

    strategy: typing.Literal["adaptive", "fixed"] | None = None
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
    if not isinstance(polling, Polling):
        raise Invalid(f"polling is a leasehold.Polling, not {type(polling).__name__}")
    if not isinstance(leasing, (bool, ShardLeasing, NoneType)):
        raise Invalid(f"shard_leasing is true, false or a leasehold.ShardLeasing, not {type(leasing).__name__}")
    shares = leasing if isinstance(leasing, ShardLeasing) else ShardLeasing()
    said |= {
        "worker.id": id,
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


class Context:
    """What a handler knows about the run it is in."""

    __slots__ = ("_run",)

    def __init__(self, run: _native.Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<leasehold.Context of task {self.task_id}, attempt {self.attempt}>"

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._run.id

    @property
    def task(self) -> Task:
        """The task as it was claimed."""
        return _models.task(json.loads(self._run.task()))

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._run.attempt

    @property
    def epoch(self) -> int:
        """The fencing token: grows with every claim of this task.

        Pass it to whatever the handler changes, and let that refuse smaller ones, and a run that was overtaken can do
        no harm.
        """
        return self._run.epoch

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the task was cancelled, timed out, is not ours any more, or the worker stops.

        An async handler gets an `asyncio.CancelledError` then; a sync one has to look here.
        """
        return self._run.is_cancelled()

    def progress(self, value: Any) -> None:
        """Says how far the handler is; written down with the next renewal."""
        checked(self._run.progress, encode("progress", value))

    def extend(self) -> None:
        """Renews the claim soon, without waiting for the usual time."""
        self._run.extend()

    def snooze(self, delay: Seconds) -> NoReturn:
        """Ends this run: the task runs again after so long, and that does not count as an attempt."""
        raise Snooze(seconds("snooze", delay))


class Handler(Generic[P, R]):
    """A handler of a worker: still the function it was, and a short way to submit tasks of its type."""

    def __init__(
        self,
        worker: Worker,
        task_type: str,
        function: Callable[P, R],
        max_attempts: int | None,
        names: Mapping[str, Any] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.task_type = task_type
        self.function = function
        self.max_attempts = max_attempts
        self._worker = worker
        self._is_async = _is_async(function)
        self._input_type = _input_type(function, names)

    def __repr__(self) -> str:
        return f"<leasehold.Handler of {self.task_type}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def submit(self, input: Any = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submits a task of this type: as `Queue.submit`, with the handler's `max_attempts` if none is given."""
        if self.max_attempts is not None:
            options.setdefault("max_attempts", self.max_attempts)
        return await self._worker.queue.submit(self.task_type, input, **options)

    def _input(self, run: _native.Run) -> Any:
        value = json.loads(run.input())
        if self._input_type is None:
            return value
        try:
            return fit(self._input_type, value)
        except (TypeError, ValueError) as error:
            raise Permanent(f"the input does not fit the handler: {error}") from error


def names_around() -> Mapping[str, Any] | None:
    """The local names where whoever asks was called."""
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    return frame and frame.f_locals


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is called in the end: an object is called by its method, a partial calls another."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(_plain(function))


def _input_type(function: Callable[..., Any], names: Mapping[str, Any] | None) -> Any:
    """What the handler asks for as its input, if that can be told; `names` are those where it was made a handler."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError):
        raise Invalid(f"a handler takes the context and the input; {function!r} does not") from None
    plain = _plain(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise Invalid(f"a handler returns its output; {function!r} yields")
    parameters = list(signature.parameters)
    try:
        return typing.get_type_hints(plain, localns=dict(names or {})).get(parameters[min(1, len(parameters) - 1)])
    except Exception:
        # Hints that only a type checker can resolve.
        return None


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

        It gets the context and the input. What it returns completes the task; what it raises fails the attempt
        (`Permanent`, `Retry` and `Snooze` say more). A function that is not async runs in a thread. If the input is
        annotated with a dataclass or a Pydantic model, it gets one.

        `max_attempts` is how many attempts tasks get that are submitted by the handler's own `submit`, and the most that
        this worker makes of any other.
        """

        _check_task(task_type, max_attempts)

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
        handler = Handler(self, task_type, function, max_attempts, names)
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


def _check_task(task_type: object, max_attempts: object) -> None:
    """As soon as it is said: a decorator without its brackets would be lost silently."""
    if not isinstance(task_type, str):
        raise Invalid(f'the task type is text, not {type(task_type).__name__}; write @worker.task("type")')
    if max_attempts is not None and (not isinstance(max_attempts, int) or max_attempts < 1):
        raise Invalid(f"max_attempts {max_attempts!r} would never run the task; it must be at least 1")


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
        if handler._is_async:
            task = asyncio.get_running_loop().create_task(_run_async(handler, run), context=context)
            self._tasks[run.number] = task
            task.add_done_callback(lambda _: self._tasks.pop(run.number, None))
        else:
            self._threads.start(functools.partial(context.run, _run_sync, handler, run))

    def stop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()


_ENDS_SECS = 1.0
"""So long a task waits that was given back because the event loop ends; its worker does not take it again."""


async def _run_async(handler: Handler[..., Any], run: _native.Run) -> None:
    try:
        output = await handler.function(Context(run), handler._input(run))
        run.complete(_written(output))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if run.is_cancelled():
            run.hand_back()
        elif task is not None and task.cancelling():
            # By none of ours: the event loop ends, and the worker with it. That is not the handler's fault.
            run.snooze(_ENDS_SECS)
        else:
            # Raised by the handler for reasons of its own.
            run.fail("CancelledError: the handler has cancelled itself", None)
    except GeneratorExit:
        # The event loop is gone, and has left the handler where it was.
        run.hand_back()
        raise
    except BaseException as error:
        _failed(handler, run, error)
        # Ctrl-C ends the program; whatever else a handler raises ends its run, as it does in a thread.
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise


def _run_sync(handler: Handler[..., Any], run: _native.Run) -> None:
    try:
        run.complete(_written(handler.function(Context(run), handler._input(run))))
    except BaseException as error:
        _failed(handler, run, error)


def _written(output: object) -> str:
    try:
        return encode("output", output)
    except Invalid as error:
        # It will not be better next time.
        raise Permanent(str(error)) from error


def _failed(handler: Handler[..., Any], run: _native.Run, error: BaseException) -> None:
    """Tells how a run has failed. Whatever happens here, the run must end."""
    try:
        if isinstance(error, Snooze):
            run.snooze(error.seconds)
            return
        text = _described(error)
        is_last = handler.max_attempts is not None and run.attempt >= handler.max_attempts
        log.debug("task %s failed in attempt %d: %s", run.id, run.attempt, text)
        if isinstance(error, Permanent) or is_last:
            run.give_up(text)
        else:
            run.fail(text, error.after if isinstance(error, Retry) else None)
    except BaseException as odd:
        run.fail(f"{type(error).__name__}, which cannot be described: {type(odd).__name__}", None)
        raise


def _described(error: BaseException) -> str:
    """Type and message first, then the traceback: its end, if all of it is too long to be kept."""
    only, lines = traceback.format_exception_only(error), traceback.format_exception(error)
    # Half characters of names of files and the like are shown by their numbers.
    head = "".join(only).strip().encode(errors="backslashreplace")[: ERROR_BYTES_MAX // 4].decode(errors="ignore")
    if lines[-len(only) :] == only:
        # A long message must not take the place of where it happened.
        lines[-len(only) :] = [head]
    room = ERROR_BYTES_MAX - len(head.encode()) - 8
    raw = "".join(lines).strip().encode(errors="backslashreplace")
    kept = raw.decode() if len(raw) <= room else "… " + raw[-room:].decode(errors="ignore")
    return f"{head}\n\n{kept}"
