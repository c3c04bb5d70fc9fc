"""Handlers, their context, and the recording of their results."""

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
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack

from . import _models, _native
from ._errors import Invalid, Permanent, Retry, Snooze
from ._json import encode, fit
from ._loop import checked
from ._models import Submitted, Task
from ._queue import Queue, Seconds, SubmitOptions, seconds

log = logging.getLogger("leasehold.worker")

ERROR_BYTES_MAX = 4_096
"""Largest error text kept in a task, in bytes."""

_OWN = os.path.dirname(__file__) + os.sep
"""Directory of this package."""

_LOOP_END_DELAY_SECS = 1.0
"""Delay of a task released because the event loop ends, so that its own worker does not claim it again."""

P = ParamSpec("P")
R = TypeVar("R")


class ContextRun(Protocol):
    """Run behind a context: one of the native module, or a stand-in for tests."""

    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def task(self) -> str: ...
    def is_cancelled(self) -> bool: ...
    def progress(self, progress: str) -> None: ...
    def artifacts(self) -> Mapping[str, str]: ...
    def directory(self) -> str: ...
    def publish(self, name: str, path: str) -> None: ...
    def extend(self) -> None: ...


class Context:
    """Context of a handler's run: the task, cancellation, progress and files."""

    __slots__ = ("_directory", "_run", "_saw_cancel")

    def __init__(self, run: ContextRun) -> None:
        self._run = run
        self._directory: pathlib.Path | None = None
        self._saw_cancel = False

    def __repr__(self) -> str:
        return f"<leasehold.Context of task {self.task_id}, attempt {self.attempt}>"

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self._run.id

    @property
    def task(self) -> Task:
        """Task as it was claimed."""
        return _models.task(json.loads(self._run.task()))

    @property
    def attempt(self) -> int:
        """Number of this attempt, starting at 1."""
        return self._run.attempt

    @property
    def epoch(self) -> int:
        """Fencing token: grows with every claim of this task.

        Pass it to every system that the handler changes, and let that system reject smaller tokens. A run whose claim
        was lost can then do no harm.
        """
        return self._run.epoch

    @property
    def cancelled(self) -> bool:
        """True if the handler should stop: the task was cancelled or timed out, its claim was lost, or the worker stops.

        An async handler gets an `asyncio.CancelledError`; a sync handler has to check this property. A handler that has
        read True here and returns does not complete its task: the task is cancelled or released, and the output is
        dropped.
        """
        if self._run.is_cancelled():
            self._saw_cancel = True
        return self._saw_cancel

    def raise_if_cancelled(self) -> None:
        """Raises `asyncio.CancelledError`, which `except Exception` does not catch, if the handler should stop."""
        if self.cancelled:
            raise asyncio.CancelledError("the handler was cancelled")

    def progress(self, value: Any) -> None:
        """Reports progress, any JSON value. It is written with the next renewal of the claim."""
        checked(self._run.progress, encode("progress", value))

    @property
    def artifacts(self) -> dict[str, pathlib.Path]:
        """Paths of the task's input files, by name. The files are read-only."""
        return {name: pathlib.Path(path) for name, path in self._run.artifacts().items()}

    @property
    def directory(self) -> pathlib.Path:
        """Private directory of this run, for results. It is removed once they are published or the run has failed."""
        if self._directory is None:
            self._directory = pathlib.Path(checked(self._run.directory))
        return self._directory

    def publish(self, name: str, path: str | os.PathLike[str]) -> None:
        """Adds a file to the task's results. It is published after the handler returns, before the task is completed.

        The file must exist until then: put it into `directory`, not into a directory that the handler removes.

        Args:
            name: Name of the result.
            path: Path of the file.
        """
        checked(self._run.publish, name, os.fspath(path))

    def extend(self) -> None:
        """Renews the claim soon, without waiting for the next regular renewal."""
        self._run.extend()

    def snooze(self, delay: Seconds) -> NoReturn:
        """Ends this run and runs the task again after `delay`. Does not count as an attempt.

        Raises:
            Snooze: Always.
        """
        raise Snooze(seconds("delay", delay))


class Handler(Generic[P, R]):
    """Handler of a worker: callable like the function it wraps, with a `submit` for tasks of its type."""

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
        self.is_async = is_async_function(function)
        self._input_type = _input_type(function, names)

    def __repr__(self) -> str:
        return f"<leasehold.Handler of {self.task_type}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def submit(self, input: Any = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submits a task of this type, like `Queue.submit`. `max_attempts` defaults to the handler's."""
        if self.max_attempts is not None:
            options.setdefault("max_attempts", self.max_attempts)
        return await self._queue.submit(self.task_type, input, **options)

    def _input(self, run: _native.Run) -> Any:
        value = json.loads(run.input())
        if self._input_type is None:
            return value
        try:
            return fit(self._input_type, value, strict=False)
        except (TypeError, ValueError) as error:
            raise Permanent(f"the input does not fit the handler: {error}") from error


def names_around() -> Mapping[str, Any] | None:
    """Returns the local names of the caller's caller."""
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    return frame and frame.f_locals


def underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the underlying function of a partial, or the `__call__` method of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def is_async_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(underlying(function))


def _input_type(function: Callable[..., Any], names: Mapping[str, Any] | None) -> Any:
    """Returns the annotated type of the handler's input, if it can be resolved with the local `names`."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError):
        raise Invalid(f"a handler must take two arguments, context and input; {function!r} does not") from None
    plain = underlying(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise Invalid(f"a handler must return its output; {function!r} is a generator")
    parameters = list(signature.parameters)
    try:
        return typing.get_type_hints(plain, localns=dict(names or {})).get(parameters[min(1, len(parameters) - 1)])
    except Exception:
        # Hints that only a type checker can resolve.
        return None


def check_task(task_type: object, max_attempts: object) -> None:
    """Validates the arguments of `Worker.task` at once: a decorator without parentheses would be ignored silently."""
    if not isinstance(task_type, str):
        raise Invalid(f'task type must be a str, got {type(task_type).__name__}; write @worker.task("type")')
    if max_attempts is not None and (not isinstance(max_attempts, int) or max_attempts < 1):
        raise Invalid(f"max_attempts must be at least 1, got {max_attempts!r}")


async def run_async(handler: Handler[..., Any], run: _native.Run) -> None:
    task, context = asyncio.current_task(), Context(run)
    try:
        output = await handler.function(context, handler._input(run))
        # A handler that was cancelled and returns has caught the cancellation and stopped.
        _complete(run, output, context._saw_cancel or (task is not None and task.cancelling() > 0))
    except asyncio.CancelledError as error:
        if run.is_cancelled():
            run.release()
        elif task is not None and task.cancelling():
            # Not cancelled by the worker: the event loop ends, and the worker with it. Not a failure of the handler.
            run.snooze(_LOOP_END_DELAY_SECS)
        else:
            # Raised by the handler itself.
            without_own_frames(error)
            _log_failure(handler, run, error)
            run.fail("CancelledError: the handler cancelled itself", None)
    except GeneratorExit as error:
        if _current_task() is not task:
            # The coroutine is closed: its event loop has ended without finishing the handler.
            run.release()
            raise
        _record_failure(handler, run, error)
    except BaseException as error:
        _record_failure(handler, run, error)
        # Ctrl-C ends the program; any other exception of a handler ends its run, as it does in a thread.
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise


def run_sync(handler: Handler[..., Any], run: _native.Run) -> None:
    context = Context(run)
    try:
        output = handler.function(context, handler._input(run))
        _complete(run, output, context._saw_cancel)
    except asyncio.CancelledError as error:
        if run.is_cancelled():
            run.release()
        else:
            # Raised by the handler itself.
            _record_failure(handler, run, error)
    except BaseException as error:
        _record_failure(handler, run, error)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No running event loop.
        return None


def _complete(run: _native.Run, output: object, saw_cancel: bool) -> None:
    """Completes the task, unless the handler returned because it was cancelled."""
    if saw_cancel and run.is_cancelled():
        run.release()
    else:
        run.complete(encode_output(output))


def encode_output(output: object) -> str:
    try:
        return encode("output", output)
    except Invalid as error:
        # A retry would not help.
        raise Permanent(str(error)) from error


def _record_failure(handler: Handler[..., Any], run: _native.Run, error: BaseException) -> None:
    """Records the failure of a run. The run must end even if this raises."""
    try:
        if isinstance(error, Snooze):
            run.snooze(error.seconds)
            return
        without_own_frames(error)
        text = _format_error(error)
        _log_failure(handler, run, error)
        if isinstance(error, Permanent):
            run.fail_permanently(text)
        elif handler.max_attempts is not None and run.attempt >= handler.max_attempts:
            run.exhaust(text, handler.max_attempts)
        else:
            run.fail(text, error.after if isinstance(error, Retry) else None)
    except BaseException as formatting_error:
        run.fail(f"{type(error).__name__} (formatting the exception failed: {type(formatting_error).__name__})", None)
        raise


def _log_failure(handler: Handler[..., Any], run: _native.Run, error: BaseException) -> None:
    name, id, attempt = handler.task_type, run.id, run.attempt
    log.warning("attempt failed task=%s task_type=%s attempt=%d", id, name, attempt, exc_info=error)


def without_own_frames(error: BaseException | None) -> None:
    """Drops the frames of this package that precede a frame of the application: they do not belong to the handler."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # Not the exception's own method, which may be overridden.
        BaseException.with_traceback(error, _application_frames(error.__traceback__))
        error = error.__cause__ or error.__context__


def _application_frames(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    is_own = [each.tb_frame.f_code.co_filename.startswith(_OWN) for each in frames]
    # Frames of this package after the last one of the application show where a call into this package has failed.
    last = max((number for number, own in enumerate(is_own) if not own), default=len(frames))
    kept = [each for number, each in enumerate(frames) if number > last or not is_own[number]]
    for each, following in zip(kept, kept[1:]):
        each.tb_next = following
    return kept[0] if kept else None


def _format_error(error: BaseException) -> str:
    """Formats an error: type and message, then the traceback, or its end if it is too long."""
    only, lines = traceback.format_exception_only(error), traceback.format_exception(error)
    # Surrogates, as in undecodable file names, are escaped.
    head = "".join(only).strip().encode(errors="backslashreplace")[: ERROR_BYTES_MAX // 4].decode(errors="ignore")
    if lines[-len(only) :] == only:
        # A long message must not displace the traceback.
        lines[-len(only) :] = [head]
    room = ERROR_BYTES_MAX - len(head.encode()) - 8
    raw = "".join(lines).strip().encode(errors="backslashreplace")
    kept = raw.decode() if len(raw) <= room else "… " + raw[-room:].decode(errors="ignore")
    return f"{head}\n\n{kept}"
