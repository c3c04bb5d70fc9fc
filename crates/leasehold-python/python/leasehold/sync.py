"""The same without asyncio, for programs that have no event loop.

    from leasehold import sync

    with sync.connect("./leasehold-data") as queue:
        task = queue.submit("resize", {"url": "a.png"})
        print(queue.wait(task.id).output)

A queue has an event loop in a thread of its own, on which every call is made and async handlers run. Any thread may use
it, also several at once.
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
from ._queue import ConnectOptions, Order, Seconds, SubmitOptions
from ._worker import WorkerOptions

__all__ = ["Handler", "Queue", "Worker", "connect"]

_LOOK_EVERY = 0.2

P = ParamSpec("P")
T = TypeVar("T")


class _Thread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self.loop.run_forever, name="leasehold-sync", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it there, and waits. Whoever is interrupted while waiting gives it up."""
        if self.loop.is_closed():
            work.close()
            raise Invalid("the queue is closed")
        if not self.is_here():
            work.close()
            raise Invalid(
                "this process was forked after the queue was opened, and has none of the threads that serve it: "
                "connect again in the child, or start processes with the method `spawn`"
            )
        if threading.current_thread() is self._thread:
            work.close()
            raise Invalid(
                "an async handler must not wait for its own event loop; a handler that is not async may wait"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            # A signal may have hit another thread, and nothing wakes this one to see to it: look now and then.
            while not concurrent.futures.wait([future], _LOOK_EVERY).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def is_here(self) -> bool:
        """A child of a fork has the loop, but not the thread that runs it."""
        return self._process == os.getpid()

    def tell(self, what: Callable[[], None]) -> None:
        """Has it done there, without waiting; nothing where nobody is left to do it."""
        if self.is_here() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(what)

    def end(self) -> None:
        self.do(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Queue:
    """A queue, as `leasehold.Queue` but without asyncio."""

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
        """The queue's own name, for good."""
        return self._queue.id

    @property
    def shard_prefix_len(self) -> int:
        """How many hex digits name a shard."""
        return self._queue.shard_prefix_len

    def now(self) -> datetime.datetime:
        """The present, in the store's time."""
        return self._queue.now()

    def submit(self, task_type: str, input: Any = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submits a task; the options are those of `leasehold.Queue.submit`."""
        return self._thread.do(self._queue.submit(task_type, input, **options))

    def submit_many(self, orders: Iterable[Order]) -> list[Submitted | Error]:
        """Submits many tasks, several at once. Each has its own result, in the order of the tasks."""
        return self._thread.do(self._queue.submit_many(orders))

    def publish(
        self, path: str | os.PathLike[str], *, name: str | None = None, media_type: str | None = None
    ) -> Artifact:
        """Puts a file into the store under its hash, unless it is there; tasks can be given it then."""
        return self._thread.do(self._queue.publish(path, name=name, media_type=media_type))

    def fetch(self, artifact: Artifact | str, to: str | os.PathLike[str]) -> None:
        """Puts an artifact at this path, whole or not at all. It stays in the cache of this machine."""
        self._thread.do(self._queue.fetch(artifact, to))

    def get(self, id: str) -> Task:
        """Reads a task; `NotFound` if there is none."""
        return self._thread.do(self._queue.get(id))

    def history(self, id: str) -> list[Change]:
        """Reads how a task came to be what it is, oldest change first."""
        return self._thread.do(self._queue.history(id))

    def wait(self, id: str, timeout: Seconds | None = None) -> Task:
        """Waits until a task is final, and gives it; `NotYet`, a `TimeoutError`, after `timeout`."""
        return self._thread.do(self._queue.wait(id, timeout))

    def list(
        self,
        *,
        status: Status | str | None = None,
        task_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        on_corrupt: Callable[[Error], None] | None = None,
    ) -> Iterator[Task]:
        """Lists tasks as they are read; what cannot be read as a task goes to `on_corrupt`, or is logged."""
        tasks = self._queue.list(
            status=status, task_type=task_type, tags=tags, limit=limit, on_corrupt=on_corrupt
        )

        async def following() -> Task | None:
            return await anext(tasks, None)

        while (task := self._thread.do(following())) is not None:
            yield task

    def cancel(self, id: str) -> Task:
        """Calls a task off: at once if it waits; a running one is stopped by its worker at the next renewal."""
        return self._thread.do(self._queue.cancel(id))

    def retry(self, id: str) -> Task:
        """Lets a task run again that has failed, was cancelled or has expired."""
        return self._thread.do(self._queue.retry(id))

    def reschedule(
        self, id: str, at: datetime.datetime | None = None, *, delay: Seconds | None = None
    ) -> Task:
        """Plans a waiting task for another time: `at` a moment, or after `delay`."""
        return self._thread.do(self._queue.reschedule(id, at, delay=delay))

    def purge(self, older_than: Seconds, statuses: Iterable[Status | str] = ()) -> Purged:
        """Removes tasks that have been final for so long."""
        return self._thread.do(self._queue.purge(older_than, statuses))

    def check(self, *, repair: bool = False) -> Checked:
        """Looks at everything, and repairs it if asked to."""
        return self._thread.do(self._queue.check(repair=repair))

    def stats(self) -> Stats:
        """Counts what waits and what runs, by the index."""
        return self._thread.do(self._queue.stats())

    def ledger(self) -> builtins.list[LedgerLine]:
        """Every request that this client has sent so far, by verb, purpose and outcome."""
        return self._queue.ledger()

    def close(self) -> None:
        """Leaves the queue, and ends its thread. Calls under way are given up, and workers on it stop."""
        if self._thread.is_here() and not self._thread.loop.is_closed():
            self._thread.do(self._queue.close())
            self._thread.end()


class Handler(Generic[P, T]):
    """A handler of a worker, as `leasehold.Handler` but without asyncio."""

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
        """Submits a task of this type: as `Queue.submit`, with the handler's `max_attempts` if none is given."""
        return self._thread.do(self._handler.submit(input, **options))


class Worker:
    """A worker, as `leasehold.Worker` but without asyncio; async handlers run on the queue's own event loop."""

    def __init__(
        self,
        queue: Queue,
        id: str | None = None,
        shards: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if not isinstance(queue, Queue):
            raise Invalid(f"a worker needs a queue, as `sync.connect(…)` gives it, not {queue!r}")
        self._thread = queue._thread
        self._worker = _worker.Worker(queue._queue, id, shards, **options)

    def __repr__(self) -> str:
        return repr(self._worker).replace("leasehold.", "leasehold.sync.", 1)

    def task(
        self, task_type: str, *, max_attempts: int | None = None
    ) -> Callable[[Callable[P, T]], Handler[P, T]]:
        """Makes a function the handler of a task type: see `leasehold.Worker.task`."""
        _handlers.check_task(task_type, max_attempts)

        def decorate(function: Callable[P, T]) -> Handler[P, T]:
            if isinstance(function, Handler):
                function = function.function
            handler = self._worker._add(task_type, function, max_attempts, _handlers.names_around())
            return Handler(self._thread, handler)

        return decorate

    def run(self, *, drain: bool = False) -> Counts:
        """Works until told to stop, or, with `drain`, until there is nothing left to do.

        In the main thread, Ctrl-C and SIGTERM let handlers finish; a second one stops them.
        """
        main = threading.current_thread() is threading.main_thread()
        seen = 0

        def obey(*_: object) -> None:
            nonlocal seen
            seen += 1
            stop = self._worker.stop if seen == 1 else self._worker.abort
            self._thread.tell(stop)

        async def work() -> Counts:
            running = asyncio.create_task(self._worker.run(drain=drain, handle_signals=False))
            await asyncio.sleep(0)
            if seen:
                # It came before there was anything to stop.
                self._worker.stop()
            return await running

        both = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {each: signal.signal(each, obey) for each in both}
        try:
            return self._thread.do(work())
        finally:
            for each, handler in before.items():
                signal.signal(each, handler if handler is not None else signal.SIG_DFL)

    def stop(self) -> None:
        """Claims nothing new, and lets handlers finish; `run` returns when they have. For other threads."""
        self._thread.tell(self._worker.stop)

    def abort(self) -> None:
        """Stops handlers, and gives their tasks back. For other threads."""
        self._thread.tell(self._worker.abort)


def connect(store: str | os.PathLike[str] | None = None, **options: Unpack[ConnectOptions]) -> Queue:
    """Opens a queue, or founds it; the arguments are those of `leasehold.connect`."""
    thread = _Thread()
    try:
        return Queue(thread, thread.do(_queue.connect(store, **options)))
    except BaseException:
        thread.end()
        raise
