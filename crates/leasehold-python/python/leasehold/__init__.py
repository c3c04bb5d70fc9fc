"""A task queue that needs no server: a bucket, or a folder, is enough.

    # shop/tasks.py
    from leasehold import Leasehold

    app = Leasehold("./leasehold-data")

    @app.task(max_attempts=5)
    def send(to: str, body: str) -> None: ...

    # anywhere, in any process
    send.submit("ada@example.org", "Hello!")

    # the worker
    python -m leasehold worker shop.tasks

Below that, `connect` and `Worker` are the API for asyncio, and `leasehold.sync` is the same without asyncio.
`leasehold.testing` provides a queue for your tests, and `python -m leasehold` is the command line.
"""

from ._app import Leasehold
from ._errors import (
    Conflict,
    Corrupt,
    Denied,
    Error,
    Internal,
    Invalid,
    Lost,
    NotCompleted,
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
from ._task_function import Submission, TaskDecorator, TaskFunction, TaskOptions
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
    "Leasehold",
    "LedgerLine",
    "Lost",
    "NewTask",
    "NotCompleted",
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
    "Submission",
    "Submitted",
    "Task",
    "TaskDecorator",
    "TaskFunction",
    "TaskOptions",
    "Unavailable",
    "Worker",
    "WorkerOptions",
    "__version__",
    "connect",
]
