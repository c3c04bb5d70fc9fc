"""A task queue that needs no server: a bucket, or a folder, is enough.

    from leasehold import Worker, connect

    queue = await connect("./leasehold-data")
    task = await queue.submit("resize", {"url": "a.png"}, delay=5, key="img-1")

    worker = Worker(queue, "worker-1")

    @worker.task("resize")
    async def resize(ctx, input): ...

    await worker.run(drain=True)
    print(await queue.wait(task.id))

This module uses asyncio. `leasehold.sync` is the blocking API, `leasehold.testing` provides a queue for your tests, and
`python -m leasehold` is the command line.
"""

from ._errors import (
    Conflict,
    Corrupt,
    Denied,
    Error,
    Internal,
    Invalid,
    Lost,
    NotFound,
    NotYet,
    Permanent,
    Retry,
    Snooze,
    Unavailable,
)
from ._handlers import Context, Handler
from ._models import (
    Artifact,
    Change,
    Checked,
    Counts,
    LedgerLine,
    Purged,
    RetryPolicy,
    Stats,
    Status,
    Submitted,
    Task,
)
from ._native import __version__
from ._queue import NewTask, Queue, connect
from ._worker import Polling, ShardLeasing, Worker, WorkerOptions

__all__ = [
    "Artifact",
    "Change",
    "Checked",
    "Conflict",
    "Context",
    "Corrupt",
    "Counts",
    "Denied",
    "Error",
    "Handler",
    "Internal",
    "Invalid",
    "LedgerLine",
    "Lost",
    "NewTask",
    "NotFound",
    "NotYet",
    "Permanent",
    "Polling",
    "Purged",
    "Queue",
    "Retry",
    "RetryPolicy",
    "ShardLeasing",
    "Snooze",
    "Stats",
    "Status",
    "Submitted",
    "Task",
    "Unavailable",
    "Worker",
    "WorkerOptions",
    "__version__",
    "connect",
]
