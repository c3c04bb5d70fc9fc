"""What a queue answers."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """Where a task stands. Equal to the word for it: `task.status == "completed"`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PURGED = "purged"

    @property
    def is_final(self) -> bool:
        """Whether a task stays there unless a person does something."""
        return self not in (Status.PENDING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait between attempts: exponentially longer, with some chance in it."""

    initial_secs: float = 1.0
    factor: float = 2.0
    max_secs: float = 300.0
    jitter: float = 0.2


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task that was accepted: it survives the crash of any process."""

    id: str
    is_new: bool
    """False if a task with the same key was there already."""
    existing: Status | None = None
    """The status in which that task was found."""
    is_retried: bool = False
    """Whether that task was retried (`key_retry_failed`)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a task's state."""

    at: datetime.datetime
    event: str
    from_status: Status | None
    to_status: Status
    by: str
    attempt: int
    epoch: int
    why: str | None
    """What went wrong, for attempts that failed: type and message of the exception, then its traceback."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task, whole: what it is, where it stands and how it came there. Times are the store's."""

    id: str
    task_type: str
    shard: str
    status: Status
    input: Any
    output: Any
    error: str | None
    """What the last attempt that failed said."""
    artifacts: Mapping[str, str]
    """Files that the task was given: names and hashes."""
    results: Mapping[str, str]
    """Files that its handler gave, if it is completed."""
    attempt: int
    max_attempts: int
    epoch: int
    rev: int
    priority: int
    created_at: datetime.datetime
    updated_at: datetime.datetime
    available_at: datetime.datetime | None
    finished_at: datetime.datetime | None
    expires_at: datetime.datetime | None
    timeout_secs: int | None
    claimed_by: str | None
    lease_expires_at: datetime.datetime | None
    cancel_requested: bool
    progress: Any
    tags: Mapping[str, str]
    idempotency_key: str | None
    retry_policy: RetryPolicy
    history: tuple[Change, ...] = field(repr=False)
    history_folded: int
    """How many changes between the first and the newest are not kept."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file in the store, named by its hash."""

    id: str
    """The hash of its bytes."""
    size: int
    name: str | None
    media_type: str | None
    was_there: bool
    """Its bytes did not have to be sent."""


@dataclass(frozen=True, slots=True)
class Stats:
    """How full a queue is, by its index."""

    due: int
    scheduled: int
    running: int
    oldest_due_secs: int | None
    shards: Mapping[str, tuple[int, int, int]]
    """Due, scheduled and running, for shards that are not empty."""
    without_task: int = 0
    """Index entries of submits that were not finished; not counted as due."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge has done."""

    marked: int
    """To be deleted by a purge a day later."""
    deleted: int
    corrupt: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has found."""

    tasks: int
    entries: int
    others: int
    """Leases, idempotency records, artifacts and other objects."""
    uncovered: tuple[str, ...]
    """Keys of tasks without an index entry; a repair writes it."""
    dangling: tuple[str, ...]
    """Index entries that no task calls for; a repair removes them."""
    leftover: tuple[str, ...]
    """Objects that a probe has left behind; a repair deletes them."""
    corrupt: tuple[str, ...]
    """Why an object is corrupt, with its key: for `leasehold quarantine`."""
    healing: tuple[str, ...]
    """Keys of objects that running workers see to."""
    repaired: int


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """So many requests of one kind."""

    verb: str
    purpose: str
    outcome: str
    requests: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What a worker has done so far."""

    started: int
    completed: int
    failed: int
    cancelled: int
    put_back: int
    lost: int
    recovered: int


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _moment(text: str | None) -> datetime.datetime | None:
    return None if text is None else moment(text)


def _change(record: dict[str, Any]) -> Change:
    before = record.get("from")
    return Change(
        at=moment(record["at"]),
        event=record["event"],
        from_status=None if before is None else Status(before),
        to_status=Status(record["to"]),
        by=record["by"],
        attempt=record["attempt"],
        epoch=record["epoch"],
        why=record.get("why"),
    )


def task(record: dict[str, Any]) -> Task:
    """A task from its record."""
    return Task(
        id=record["id"],
        task_type=record["task_type"],
        shard=record["shard"],
        status=Status(record["status"]),
        input=record["input"],
        output=record.get("output"),
        error=record.get("error"),
        artifacts=record.get("artifacts", {}),
        results=record.get("results", {}),
        attempt=record["attempt"],
        max_attempts=record["max_attempts"],
        epoch=record["epoch"],
        rev=record["rev"],
        priority=record["priority"],
        created_at=moment(record["created_at"]),
        updated_at=moment(record["updated_at"]),
        available_at=_moment(record.get("available_at")),
        finished_at=_moment(record.get("finished_at")),
        expires_at=_moment(record.get("expires_at")),
        timeout_secs=record.get("timeout_secs"),
        claimed_by=record.get("claimed_by"),
        lease_expires_at=_moment(record.get("lease_expires_at")),
        cancel_requested=record.get("cancel_requested", False),
        progress=record.get("progress"),
        tags=record.get("tags", {}),
        idempotency_key=record.get("idempotency_key"),
        retry_policy=RetryPolicy(**record["retry_policy"]),
        history=tuple(_change(change) for change in record["history"]),
        history_folded=record.get("history_folded", 0),
    )
