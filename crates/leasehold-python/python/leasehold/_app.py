"""Applications: tasks in modules, which producers import and a worker runs."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, Unpack

from . import sync
from ._connection import Connection, refuse_in_async_code
from ._errors import Error, Invalid
from ._handlers import Context
from ._models import Counts, Submitted
from ._processes import Processes
from ._queue import ConnectOptions, NewTask, address
from ._task_function import TaskDecorator, TaskFunction, TaskOptions
from ._worker import WorkerOptions

log = logging.getLogger("leasehold.app")

Middleware = Callable[[Context], Iterator[None]]
Lifespan = Callable[[], Iterator[None] | AsyncIterator[None]]
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)


class Leasehold:
    """An application: its tasks, and the queue that they are submitted to.

        app = Leasehold("./leasehold-data")

        @app.task(max_attempts=5)
        def send(to: str, body: str) -> None: ...

        send.submit("ada@example.org", body="Hello!")

    Create it at module level. Nothing is opened before the first call needs it. Then the process has one connection, for all
    threads and event loops, which is closed at exit. `python -m leasehold worker MODULE` runs the tasks.

    Args:
        store: Folder, or address of a bucket such as `s3://my-bucket/tasks`. Default: from the settings. A relative folder is
            resolved now.
        **options: See `connect`.
    """

    def __init__(
        self, store: str | os.PathLike[str] | None = None, **options: Unpack[ConnectOptions]
    ) -> None:
        for name in options.keys() - ConnectOptions.__annotations__.keys():
            raise TypeError(f"Leasehold() got an unexpected keyword argument {name!r}")
        wanted = address(store, options.get("bucket"), options.get("prefix"))
        if store is not None and wanted is not None and "://" not in wanted:
            store = wanted = os.path.abspath(wanted)
        self._where = wanted or "the queue of the settings"
        self._connection = Connection(store, options)
        self._tasks: dict[str, TaskFunction[..., Any, Any]] = {}
        self._middleware: list[Middleware] = []
        self._lifespans: list[Lifespan] = []

    def __repr__(self) -> str:
        return f"<leasehold.Leasehold on {self._where} with {', '.join(self._tasks) or 'no tasks yet'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def task(self) -> TaskDecorator:
        """Decorator that makes a function a task: `@app.task`, or `@app.task(max_attempts=5)`. See `TaskDecorator`."""
        return TaskDecorator(self, None, False, {})

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """Tasks by name."""
        return MappingProxyType(self._tasks)

    @property
    def queue(self) -> sync.Queue:
        """Queue of this application, to read, cancel and retry tasks. Its methods block; async code can use `connect`."""
        return self._connection.queue()

    def middleware(self, function: M) -> M:
        """Registers a generator function with one `yield`, at which the handler runs; the first one is the outermost.

        It gets the context. An exception of the handler is raised at the `yield`. The middleware may raise another exception;
        if it swallows the exception, the attempt has failed nevertheless. It runs on the thread or event loop of the handler.
        """
        _check_generator("middleware", function, False)
        self._middleware.append(function)
        return function

    def lifespan(self, function: L) -> L:
        """Registers a generator function with one `yield`, during which a worker runs: resources of a worker's process.

        It may be async, and then runs on the event loop of the async handlers.
        """
        _check_generator("lifespan", function, True)
        self._lifespans.append(function)
        return function

    def submit_many(self, tasks: Iterable[NewTask]) -> list[Submitted | Error]:
        """Submits many calls concurrently: `app.submit_many(send.new_task(to, "Hello!") for to in users)`.

        Returns one result per task, in the same order. An `Error` in the list is a task that the store did not accept.

        Raises:
            Invalid: If any task is invalid; nothing is submitted.
        """
        return self._connection.call(lambda queue: queue.submit_many(tasks), "app.submit_many_async(…)")

    async def submit_many_async(self, tasks: Iterable[NewTask]) -> list[Submitted | Error]:
        """Submits many calls concurrently, in async code."""
        return await self._connection.call_async(lambda queue: queue.submit_many(tasks))

    def work(
        self,
        id: str | None = None,
        shards: Sequence[str] | None = None,
        *,
        drain: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Counts:
        """Runs tasks until Ctrl-C or SIGTERM or, with `drain`, until the queue is empty. See `Worker` and `Worker.run`.

        `python -m leasehold worker MODULE` calls this.
        """
        refuse_in_async_code("asyncio.to_thread(app.work)")
        if not self._tasks:
            raise Invalid("the application has no tasks: import the modules that define them")
        queue = self._connection.queue()
        worker = sync.Worker(queue, id, shards, **options)
        with contextlib.ExitStack() as entered:
            processes = None
            if any(task.is_in_process for task in self._tasks.values()):
                processes = Processes()
                entered.callback(processes.close)
            for task in self._tasks.values():
                worker._worker._add(task.name, handler_of(task, processes), task.max_attempts, None)
            self._enter_lifespans(entered, queue)
            log.info("worker starts on %s, tasks: %s", self._where, ", ".join(self._tasks))
            counts = worker.run(drain=drain)
            log.info("worker has ended: %d completed, %d failed", counts.completed, counts.failed)
        return counts

    def close(self) -> None:
        """Closes the connection of this process. Called at exit; the next call opens it again."""
        self._connection.close()

    def _enter_lifespans(self, entered: contextlib.ExitStack, queue: sync.Queue | None) -> None:
        """Enters all lifespans; the async ones on the event loop of the queue.

        Without a queue, as in a process of tasks, the async ones are left out.
        """
        for lifespan in self._lifespans:
            if not inspect.isasyncgenfunction(lifespan):
                entered.enter_context(_lifespan(lifespan))  # type: ignore[arg-type]
            elif queue is not None:
                entered.enter_context(_async_lifespan(queue, lifespan))

    def _add(
        self,
        function: Callable[..., Any],
        name: str | None,
        is_in_process: bool,
        options: TaskOptions,
        names: Mapping[str, Any] | None,
    ) -> TaskFunction[..., Any, Any]:
        name = name or getattr(function, "__name__", None)
        if name is None:
            raise Invalid(f"{function!r} has no name; write @app.task(name=…)")
        if name in self._tasks:
            raise Invalid(f"there are two tasks with the name `{name}`; write @app.task(name=…) for one of them")
        task = TaskFunction[..., Any, Any](self, name, function, is_in_process, options, names)
        self._tasks[name] = task
        return task


def _check_generator(what: str, function: object, may_be_async: bool) -> None:
    if not inspect.isgeneratorfunction(function) and not (may_be_async and inspect.isasyncgenfunction(function)):
        kinds = "a generator function, async or not," if may_be_async else "a generator function that is not async,"
        raise Invalid(f"{what} must be {kinds} with one `yield`, got {function!r}")


@contextlib.contextmanager
def _lifespan(lifespan: Callable[[], Iterator[None]]) -> Iterator[None]:
    manager = contextlib.contextmanager(lifespan)()
    manager.__enter__()
    # A lifespan ends in the same way whatever ended the worker: an error of the worker is not raised at the lifespan's
    # `yield`.
    try:
        yield
    finally:
        manager.__exit__(None, None, None)


@contextlib.contextmanager
def _async_lifespan(queue: sync.Queue, lifespan: Callable[[], AsyncIterator[None]]) -> Iterator[None]:
    manager = contextlib.asynccontextmanager(lifespan)()
    queue._thread.run(manager.__aenter__())
    try:
        yield
    finally:
        queue._thread.run(manager.__aexit__(None, None, None))


@contextlib.contextmanager
def _around(middleware: Sequence[Middleware], ctx: Context) -> Iterator[None]:
    """Runs middleware around a handler. Raises the failure of a handler that a middleware swallows."""
    failure: BaseException | None = None
    with contextlib.ExitStack() as entered:
        try:
            for each in middleware:
                entered.enter_context(contextlib.contextmanager(each)(ctx))
            yield
            return
        except BaseException as error:
            failure = error
            raise
    raise failure


def handler_of(
    task: TaskFunction[..., Any, Any], processes: Processes | None = None
) -> Callable[[Context, Any], Any]:
    """Returns the worker's handler of a task: it takes the context and the task's input."""
    function, decode, takes_context = task.function, task.arguments.decode, task.arguments.takes_context
    middleware = task.app._middleware

    if processes is not None and task.is_in_process:
        return lambda ctx, input: processes.run(task, ctx, input)

    if task.is_async:

        async def run_async(ctx: Context, input: Any) -> Any:
            args, kwargs = decode(input)
            with _around(middleware, ctx):
                return await function(*((ctx, *args) if takes_context else args), **kwargs)

        return run_async

    def run(ctx: Context, input: Any) -> Any:
        args, kwargs = decode(input)
        with _around(middleware, ctx):
            return function(*((ctx, *args) if takes_context else args), **kwargs)

    return run
