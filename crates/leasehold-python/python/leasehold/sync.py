"""Blocking API, for programs without an event loop.

    from leasehold import sync

    with sync.connect("./leasehold-data") as queue:
        task = queue.submit("resize", {"url": "a.png"})
        print(queue.wait(task.id).output)

Each queue has an event loop in its own thread, which makes all calls and runs async handlers. A queue is thread-safe.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import datetime
import functools
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

from . import _handlers, _queue, _worker
from ._errors import Error, Invalid
from ._models import Artifact, Change, Checked, Counts, LedgerLine, Purged, Stats, Status, Submitted, Task
from ._queue import ConnectOptions, NewTask, Seconds, SubmitOptions
from ._worker import WorkerOptions

__all__ = ["Handler", "Queue", "Worker", "connect"]

_WAIT_INTERVAL = 0.2

P = ParamSpec("P")
T = TypeVar("T")


class _Thread:
    """Event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self.loop.run_forever, name="leasehold-sync", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for it. An interrupted wait cancels the coroutine."""
        self._check(work)
        if threading.current_thread() is self._thread:
            work.close()
            raise Invalid(
                "an async handler must not call the blocking API of its own queue; use a sync handler"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            # A signal may be delivered to another thread, which does not wake this one: wait in short intervals.
            while not concurrent.futures.wait([future], _WAIT_INTERVAL).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop for async code on this or another loop."""
        self._check(work)
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def _check(self, work: Coroutine[Any, Any, T]) -> None:
        """Rejects work that the loop would never do."""
        if self.loop.is_closed():
            work.close()
            raise Invalid("the queue is closed")
        if not self.is_own_process():
            work.close()
            raise Invalid(
                "this process was forked after the queue was opened, and the queue's threads run only in the parent: "
                "connect again in the child, or start processes with the method `spawn`"
            )

    def is_own_process(self) -> bool:
        """True in the process that opened the queue; a forked child has the loop, but not its thread."""
        return self._process == os.getpid()

    def schedule(self, what: Callable[[], None]) -> None:
        """Schedules a function on the loop without waiting. Does nothing if the loop is closed or not in this process."""
        if self.is_own_process() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(what)

    def end(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Queue:
    """Blocking version of `leasehold.Queue`."""

    def __init__(self, thread: _Thread, queue: _queue.Queue) -> None:
        self._thread = thread
        self._queue = queue

    def __repr__(self) -> str:
        return repr(self._queue).replace("leasehold.", "leasehold.sync.", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def id(self) -> str:
        """Random id of the queue; `leasehold init --restore` replaces it."""
        return self._queue.id

    @property
    def shard_prefix_len(self) -> int:
        """Number of hex digits of a shard name."""
        return self._queue.shard_prefix_len

    def now(self) -> datetime.datetime:
        """Returns the current time of the store."""
        return self._queue.now()

    def submit(self, task_type: str, input: Any = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submits a task. For the options see `leasehold.Queue.submit`."""
        return self._thread.run(self._queue.submit(task_type, input, **options))

    def submit_many(self, tasks: Iterable[NewTask]) -> list[Submitted | Error]:
        """Submits many tasks concurrently and returns one result per task, in the same order."""
        return self._thread.run(self._queue.submit_many(tasks))

    def publish(
        self, path: str | os.PathLike[str], *, name: str | None = None, media_type: str | None = None
    ) -> Artifact:
        """Uploads a file as an artifact, unless the store has it already. Pass the result to `submit(artifacts=…)`."""
        return self._thread.run(self._queue.publish(path, name=name, media_type=media_type))

    def fetch(self, artifact: Artifact | str, to: str | os.PathLike[str]) -> None:
        """Downloads an artifact to the path `to`, atomically. A copy stays in this machine's cache."""
        self._thread.run(self._queue.fetch(artifact, to))

    def get(self, id: str) -> Task:
        """Reads a task. Raises `NotFound` if there is none."""
        return self._thread.run(self._queue.get(id))

    def history(self, id: str) -> list[Change]:
        """Reads a task's history, oldest change first."""
        return self._thread.run(self._queue.history(id))

    def wait(self, id: str, timeout: Seconds | None = None) -> Task:
        """Waits until a task is final and returns it. Raises `NotYet`, a `TimeoutError`, after `timeout`."""
        return self._thread.run(self._queue.wait(id, timeout))

    def list(
        self,
        *,
        status: Status | str | None = None,
        task_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        on_corrupt: Callable[[Error], None] | None = None,
    ) -> Iterator[Task]:
        """Lists tasks as they are read. For the arguments see `leasehold.Queue.list`."""
        tasks = self._queue.list(
            status=status, task_type=task_type, tags=tags, limit=limit, on_corrupt=on_corrupt
        )

        async def next_task() -> Task | None:
            return await anext(tasks, None)

        while (task := self._thread.run(next_task())) is not None:
            yield task

    def cancel(self, id: str) -> Task:
        """Cancels a task: a pending one immediately, a running one at the next renewal of its claim."""
        return self._thread.run(self._queue.cancel(id))

    def retry(self, id: str) -> Task:
        """Retries a failed, cancelled or expired task."""
        return self._thread.run(self._queue.retry(id))

    def reschedule(
        self, id: str, at: datetime.datetime | None = None, *, delay: Seconds | None = None
    ) -> Task:
        """Changes the time at which a pending task is due: `at` a time, or after `delay`."""
        return self._thread.run(self._queue.reschedule(id, at, delay=delay))

    def purge(self, older_than: Seconds, statuses: Iterable[Status | str] = ()) -> Purged:
        """Removes tasks that have been final for at least `older_than`. See `leasehold.Queue.purge`."""
        return self._thread.run(self._queue.purge(older_than, statuses))

    def check(self, *, repair: bool = False) -> Checked:
        """Checks the queue for inconsistencies, and repairs them if `repair` is true."""
        return self._thread.run(self._queue.check(repair=repair))

    def stats(self) -> Stats:
        """Counts pending and running tasks from the index; in the layout `journal` also final ones, from its state."""
        return self._thread.run(self._queue.stats())

    def ledger(self) -> builtins.list[LedgerLine]:
        """Returns the request counts of this client so far, by verb, purpose and outcome."""
        return self._queue.ledger()

    def close(self) -> None:
        """Closes the queue and ends its thread. Pending calls and workers on it are aborted."""
        if self._thread.is_own_process() and not self._thread.loop.is_closed():
            self._thread.run(self._queue._end_calls())
            # On this thread: at exit the loop can no longer start another one.
            self._queue._native.close()
            self._thread.end()


class Handler(Generic[P, T]):
    """Blocking version of `leasehold.Handler`."""

    def __init__(self, thread: _Thread, handler: _handlers.Handler[P, T]) -> None:
        functools.update_wrapper(self, handler.function)
        self.task_type = handler.task_type
        self.function = handler.function
        self.max_attempts = handler.max_attempts
        self._thread = thread
        self._handler = handler

    def __repr__(self) -> str:
        return repr(self._handler).replace("leasehold.", "leasehold.sync.", 1)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    def submit(self, input: Any = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submits a task of this type, like `Queue.submit`. `max_attempts` defaults to the handler's."""
        return self._thread.run(self._handler.submit(input, **options))


class Worker:
    """Blocking version of `leasehold.Worker`. Async handlers run on the queue's event loop."""

    def __init__(
        self,
        queue: Queue,
        id: str | None = None,
        shards: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(queue, Queue):
            raise Invalid(f"queue must be a leasehold.sync.Queue, as returned by `sync.connect(…)`, got {queue!r}")
        self._thread = queue._thread
        self._worker = _worker.Worker(queue._queue, id, shards, **options)

    def __repr__(self) -> str:
        return repr(self._worker).replace("leasehold.", "leasehold.sync.", 1)

    def task(
        self, task_type: str, *, max_attempts: int | None = None
    ) -> Callable[[Callable[P, T]], Handler[P, T]]:
        """Registers the decorated function as the handler of a task type. See `leasehold.Worker.task`."""
        _handlers.check_task(task_type, max_attempts)

        def decorate(function: Callable[P, T]) -> Handler[P, T]:
            if isinstance(function, Handler):
                function = function.function
            handler = self._worker._add(task_type, function, max_attempts, _handlers.names_around())
            return Handler(self._thread, handler)

        return decorate

    def run(self, *, drain: bool = False) -> Counts:
        """Runs until the worker is stopped or, with `drain`, until the queue is empty. See `leasehold.Worker.run`.

        In the main thread, the first Ctrl-C or SIGTERM lets handlers finish; the second cancels them.
        """
        main = threading.current_thread() is threading.main_thread()
        signals = 0

        def on_signal(*_: object) -> None:
            nonlocal signals
            signals += 1
            stop = self._worker.stop if signals == 1 else self._worker.abort
            self._thread.schedule(stop)

        async def work() -> Counts:
            running = asyncio.create_task(self._worker.run(drain=drain, handle_signals=False))
            await asyncio.sleep(0)
            if signals:
                # The signal arrived before the worker was running.
                self._worker.stop()
            return await running

        both = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {each: signal.signal(each, on_signal) for each in both}
        try:
            return self._thread.run(work())
        finally:
            for each, handler in before.items():
                signal.signal(each, handler if handler is not None else signal.SIG_DFL)

    def stop(self) -> None:
        """Stops claiming tasks and lets handlers finish; then `run` returns. Call it from another thread."""
        self._thread.schedule(self._worker.stop)

    def abort(self) -> None:
        """Cancels handlers and releases their tasks. Call it from another thread."""
        self._thread.schedule(self._worker.abort)


def connect(store: str | os.PathLike[str] | None = None, **options: Unpack[ConnectOptions]) -> Queue:
    """Opens a queue and creates it if it does not exist. For the arguments see `leasehold.connect`."""
    thread = _Thread()
    try:
        return Queue(thread, thread.run(_queue.connect(store, **options)))
    except BaseException:
        thread.end()
        raise
