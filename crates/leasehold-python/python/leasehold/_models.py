"""Values that a queue returns."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """Status of a task. Equal to its name: `task.status == "completed"`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PURGED = "purged"

    @property
    def is_final(self) -> bool:
        """True if the status changes only by a manual action, such as a retry."""
        return self not in (Status.PENDING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delay between attempts: exponential backoff with jitter."""

    initial_secs: float = 1.0
    """Delay before the second attempt, in seconds."""
    factor: float = 2.0
    """Factor by which each further delay grows."""
    max_secs: float = 300.0
    """Maximum delay, in seconds."""
    jitter: float = 0.2
    """Random share by which a delay is longer or shorter, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Result of a submit. The task is durable: it survives the crash of any process."""

    id: str
    is_new: bool
    """False if a task with this key already existed."""
    existing: Status | None = None
    """Status of the existing task."""
    is_retried: bool = False
    """True if the existing task was retried (`key_retry_failed`)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a task's history."""

    at: datetime.datetime
    event: str
    from_status: Status | None
    to_status: Status
    by: str
    attempt: int
    epoch: int
    why: str | None
    """Reason for the change. Error of a failed attempt: type and message of the exception, then its traceback."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its status and history. Times are the store's."""

    id: str
    task_type: str
    shard: str
    status: Status
    input: Any
    output: Any
    error: str | None
    """Error of the last failed attempt."""
    artifacts: Mapping[str, str]
    """Input files: hashes by name."""
    results: Mapping[str, str]
    """Result files of a completed task: hashes by name."""
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
    """Number of changes between the first and the newest that are no longer kept."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file in the store, identified by its hash."""

    id: str
    """Hash of the content."""
    size: int
    name: str | None
    media_type: str | None
    was_there: bool
    """True if the content was already in the store and was not uploaded."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Number of tasks: pending (due or scheduled) and running; in the layout `journal` also final."""

    due: int
    scheduled: int
    running: int
    oldest_due_secs: int | None
    shards: Mapping[str, tuple[int, int, int]]
    """Due, scheduled and running tasks of each shard that is not empty."""
    without_task: int = 0
    """Index entries of unfinished submits; not counted as due."""
    finished: Mapping[str, int] | None = None
    """Final tasks by status; only in the layout `journal`."""


@dataclass(frozen=True, slots=True)
class Purged:
    """Result of a purge."""

    marked: int
    """Tasks marked for deletion by a purge at least a day later."""
    deleted: int
    corrupt: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check."""

    tasks: int
    entries: int
    others: int
    """Leases, idempotency records, artifacts and other objects."""
    uncovered: tuple[str, ...]
    """Keys of tasks without an index entry; a repair writes it."""
    unneeded: tuple[str, ...]
    """Index entries that no task requires; a repair deletes them."""
    leftover: tuple[str, ...]
    """Objects that a killed process has left; a repair deletes them."""
    corrupt: tuple[str, ...]
    """Corrupt objects: key and reason. Use `leasehold quarantine` to move them away."""
    transient: tuple[str, ...]
    """Keys of transient objects, which running workers remove or replace."""
    repaired: int


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Number of requests of one kind."""

    verb: str
    purpose: str
    outcome: str
    requests: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of tasks a worker has started and how they ended."""

    started: int
    completed: int
    failed: int
    """Tasks that failed permanently."""
    cancelled: int
    put_back: int
    """Runs after which the task became pending again: to be retried, snoozed or released."""
    lost: int
    """Runs whose claim expired or was taken over before their result was recorded."""
    recovered: int
    """Tasks of crashed workers that this worker made pending again."""


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _moment(text: str | None) -> datetime.datetime | None:
    return None if text is None else moment(text)


def submitted(record: dict[str, Any]) -> Submitted:
    existing = record["existing"]
    return Submitted(
        id=record["id"],
        is_new=record["is_new"],
        existing=None if existing is None else Status(existing),
        is_retried=record["is_retried"],
    )


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
    """Creates a task from its record."""
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
