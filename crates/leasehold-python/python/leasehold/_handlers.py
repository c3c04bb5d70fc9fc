"""Handlers: what they get, and how a run of one ends."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
import pathlib
import threading
import traceback
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack

from . import _models, _native
from ._errors import Invalid, Permanent, Retry, Snooze
from ._json import encode, fit
from ._loop import checked
from ._models import Submitted, Task
from ._queue import Queue, Seconds, SubmitOptions, seconds

log = logging.getLogger("leasehold.worker")

ERROR_BYTES_MAX = 4_096
"""So much of an error is kept in a task."""

_OWN = os.path.dirname(__file__) + os.sep
"""Where the files of this package are."""

_ENDS_SECS = 1.0
"""So long a task waits that was given back because the event loop ends; its worker does not take it again."""

P = ParamSpec("P")
R = TypeVar("R")


class Context:
    """What a handler knows about the run it is in."""

    __slots__ = ("_directory", "_run", "_saw_stop")

    def __init__(self, run: _native.Run) -> None:
        self._run = run
        self._directory: pathlib.Path | None = None
        self._saw_stop = False

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

        An async handler gets an `asyncio.CancelledError` then; a sync one has to look here. A handler that has seen this
        and returns has not completed its task: the task is cancelled or released, as was asked, and the output is dropped.
        """
        if self._run.is_cancelled():
            self._saw_stop = True
        return self._saw_stop

    def raise_if_cancelled(self) -> None:
        """Raises `asyncio.CancelledError` if the handler should stop; `except Exception` does not catch that."""
        if self.cancelled:
            raise asyncio.CancelledError("the handler was asked to stop")

    def progress(self, value: Any) -> None:
        """Says how far the handler is; written down with the next renewal."""
        checked(self._run.progress, encode("progress", value))

    @property
    def artifacts(self) -> dict[str, pathlib.Path]:
        """Where the files lie that the task was given, by name. They are only to be read."""
        return {name: pathlib.Path(path) for name, path in self._run.artifacts().items()}

    @property
    def directory(self) -> pathlib.Path:
        """A directory of this run alone, for results. It is removed when these are published, or the run has failed."""
        if self._directory is None:
            self._directory = pathlib.Path(checked(self._run.directory))
        return self._directory

    def publish(self, name: str, path: str | os.PathLike[str]) -> None:
        """Gives a file as a result: it is published when the handler has ended well, before the task is completed.

        Until then it has to stay where it is: in `directory`, say, and not in one that the handler removes at its end.
        """
        checked(self._run.publish, name, os.fspath(path))

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
        queue: Queue,
        task_type: str,
        function: Callable[P, R],
        max_attempts: int | None,
        names: Mapping[str, Any] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.task_type = task_type
        self.function = function
        self.max_attempts = max_attempts
        self._queue = queue
        self.is_async = _is_async(function)
        self._input_type = _input_type(function, names)

    def __repr__(self) -> str:
        return f"<leasehold.Handler of {self.task_type}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def submit(self, input: Any = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submits a task of this type: as `Queue.submit`, with the handler's `max_attempts` if none is given."""
        if self.max_attempts is not None:
            options.setdefault("max_attempts", self.max_attempts)
        return await self._queue.submit(self.task_type, input, **options)

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


def check_task(task_type: object, max_attempts: object) -> None:
    """As soon as it is said: a decorator without its brackets would be lost silently."""
    if not isinstance(task_type, str):
        raise Invalid(f'the task type is text, not {type(task_type).__name__}; write @worker.task("type")')
    if max_attempts is not None and (not isinstance(max_attempts, int) or max_attempts < 1):
        raise Invalid(f"max_attempts {max_attempts!r} would never run the task; it must be at least 1")


async def run_async(handler: Handler[..., Any], run: _native.Run) -> None:
    task, context = asyncio.current_task(), Context(run)
    try:
        output = await handler.function(context, handler._input(run))
        # A handler that was cancelled and returns has caught its cancellation, and stopped.
        _ended(run, output, context._saw_stop or (task is not None and task.cancelling() > 0))
    except asyncio.CancelledError as error:
        if run.is_cancelled():
            run.hand_back()
        elif task is not None and task.cancelling():
            # By none of ours: the event loop ends, and the worker with it. That is not the handler's fault.
            run.snooze(_ENDS_SECS)
        else:
            # Raised by the handler for reasons of its own.
            _without_own_frames(error)
            _log_failure(handler, run, error)
            run.fail("CancelledError: the handler has cancelled itself", None)
    except GeneratorExit as error:
        if _current_task() is not task:
            # The coroutine is closed: its event loop is gone, and has left the handler where it was.
            run.hand_back()
            raise
        _failed(handler, run, error)
    except BaseException as error:
        _failed(handler, run, error)
        # Ctrl-C ends the program; whatever else a handler raises ends its run, as it does in a thread.
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise


def run_sync(handler: Handler[..., Any], run: _native.Run) -> None:
    context = Context(run)
    try:
        output = handler.function(context, handler._input(run))
        _ended(run, output, context._saw_stop)
    except asyncio.CancelledError as error:
        if run.is_cancelled():
            run.hand_back()
        else:
            # Raised by the handler for reasons of its own.
            _failed(handler, run, error)
    except BaseException as error:
        _failed(handler, run, error)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No event loop runs.
        return None


def _ended(run: _native.Run, output: object, saw_stop: bool) -> None:
    """Completes the task, unless the handler returned because it was asked to stop."""
    if saw_stop and run.is_cancelled():
        run.hand_back()
    else:
        run.complete(_written(output))


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
        _without_own_frames(error)
        text = _described(error)
        _log_failure(handler, run, error)
        if isinstance(error, Permanent):
            run.give_up(text)
        elif handler.max_attempts is not None and run.attempt >= handler.max_attempts:
            run.exhaust(text, handler.max_attempts)
        else:
            run.fail(text, error.after if isinstance(error, Retry) else None)
    except BaseException as odd:
        run.fail(f"{type(error).__name__}, which cannot be described: {type(odd).__name__}", None)
        raise


def _log_failure(handler: Handler[..., Any], run: _native.Run, error: BaseException) -> None:
    name, id, attempt = handler.task_type, run.id, run.attempt
    log.warning("attempt failed task=%s task_type=%s attempt=%d", id, name, attempt, exc_info=error)


def _without_own_frames(error: BaseException | None) -> None:
    """Drops the frames of this package with which tracebacks begin: they tell nothing of what a handler did."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
            trace = trace.tb_next
        # Not the method of the exception, which may be anything.
        BaseException.with_traceback(error, trace)
        error = error.__cause__ or error.__context__


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
