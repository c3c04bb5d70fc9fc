"""Queue for asyncio."""

from __future__ import annotations

import asyncio
import builtins
import datetime
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

from . import _models, _native
from ._errors import Error, Invalid, from_description
from ._json import encode
from ._loop import Loop, checked
from ._models import Artifact, Change, Checked, LedgerLine, Purged, RetryPolicy, Stats, Status, Submitted, Task

log = logging.getLogger("leasehold")

Seconds = float | datetime.timedelta
"""A duration: a number of seconds, or a `timedelta`."""


class CommonOptions(TypedDict, total=False):
    """Options of a submit that have the same name everywhere."""

    delay: Seconds | None
    at: datetime.datetime | None
    key: str | None
    key_scope: Literal["queue", "task_type"]
    key_lifetime: Seconds | None
    key_retry_failed: bool
    max_attempts: int | None
    timeout: Seconds | None
    expires_in: Seconds | None
    priority: int | None
    tags: Mapping[str, str] | None
    artifacts: Mapping[str, Artifact | str] | None


class SubmitOptions(CommonOptions, total=False):
    """Keyword arguments of `Queue.submit`."""

    retry_policy: RetryPolicy | None


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `connect`."""

    bucket: str | None
    prefix: str | None
    layout: Literal["objects", "journal"] | None
    shard_prefix_len: int | None
    dispatch_mode: Literal["shared", "direct"] | None
    endpoint: str | None
    region: str | None
    access_key_id: str | None
    secret_access_key: str | None
    durability: Literal["fsync", "os"] | None
    profile: str | None
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """New task for `Queue.submit_many`; the fields are the arguments of `Queue.submit`."""

    task_type: str
    input: Any = None
    delay: Seconds | None = None
    at: datetime.datetime | None = None
    key: str | None = None
    key_scope: Literal["queue", "task_type"] = "queue"
    key_lifetime: Seconds | None = None
    key_retry_failed: bool = False
    max_attempts: int | None = None
    retry_policy: RetryPolicy | None = None
    timeout: Seconds | None = None
    expires_in: Seconds | None = None
    priority: int | None = None
    tags: Mapping[str, str] | None = None
    artifacts: Mapping[str, Artifact | str] | None = None

    def _encode(self) -> str:
        """Encodes the task as a line of `submit-many`."""
        fields: dict[str, Any] = {"task_type": _text("task type", self.task_type)}
        if self.delay is not None:
            fields["delay_secs"] = seconds("delay", self.delay)
        if self.at is not None:
            fields["at"] = _moment("at", self.at)
        if self.key is not None:
            fields["key"] = _text("key", self.key)
            fields["key_scope"] = self.key_scope
            if self.key_lifetime is not None:
                fields["key_lifetime_secs"] = _whole("key_lifetime", self.key_lifetime)
            if self.key_retry_failed:
                fields["key_retry_failed"] = True
        elif self.key_lifetime is not None or self.key_retry_failed:
            option = "key_retry_failed" if self.key_lifetime is None else "key_lifetime"
            raise Invalid(f"{option} needs a key")
        if self.max_attempts is not None:
            fields["max_attempts"] = self.max_attempts
        if self.retry_policy is not None:
            fields["retry_policy"] = self.retry_policy
        if self.timeout is not None:
            fields["timeout_secs"] = _whole("timeout", self.timeout)
        if self.expires_in is not None:
            fields["expires_secs"] = _whole("expires_in", self.expires_in)
        if self.priority is not None:
            fields["priority"] = self.priority
        if self.tags:
            fields["tags"] = self.tags
        if self.artifacts:
            fields["artifacts"] = {name: _artifact(artifact) for name, artifact in self.artifacts.items()}
        # The input is encoded separately, so that an error names it.
        return f'{encode("task", fields)[:-1]},"input":{encode("input", self.input)}}}'


class Queue:
    """A queue of tasks in a bucket or a folder. Open one with `connect`.

    A queue belongs to the event loop and the process that opened it. Close it when you are done, or use it as
    `async with await connect(…) as queue`.
    """

    def __init__(self, loop: Loop, native: _native.Queue, about: dict[str, Any]) -> None:
        self._loop = loop
        self._native = native
        self._about = about

    def __repr__(self) -> str:
        return f"<leasehold.Queue {self._about['describe']}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """Random id of the queue; `leasehold init --restore` replaces it."""
        return str(self._about["id"])

    @property
    def shard_prefix_len(self) -> int:
        """Number of hex digits of a shard name."""
        return int(self._about["shard_prefix_len"])

    @staticmethod
    def all_shards(digits: int) -> list[str]:
        """Returns the names of all shards of a queue with this `shard_prefix_len`."""
        return checked(_native.all_shards, digits)

    def now(self) -> datetime.datetime:
        """Returns the current time of the store."""
        return _models.moment(checked(self._native.now))

    async def submit(
        self,
        task_type: str,
        input: Any = None,
        *,
        delay: Seconds | None = None,
        at: datetime.datetime | None = None,
        key: str | None = None,
        key_scope: Literal["queue", "task_type"] = "queue",
        key_lifetime: Seconds | None = None,
        key_retry_failed: bool = False,
        max_attempts: int | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout: Seconds | None = None,
        expires_in: Seconds | None = None,
        priority: int | None = None,
        tags: Mapping[str, str] | None = None,
        artifacts: Mapping[str, Artifact | str] | None = None,
    ) -> Submitted:
        """Submits a task. Once this returns, the task survives the crash of any process.

        Args:
            task_type: Selects the handler.
            input: Any JSON value, a dataclass or a Pydantic model.
            delay: Time until the task is due, in seconds or as a `timedelta`. Default: 0. Excludes `at`.
            at: Time at which the task is due, with a time zone.
            key: Idempotency key: submits with the same key create one task.
            key_scope: Tasks among which the key is unique: `"queue"` or `"task_type"`. Default: `"queue"`.
            key_lifetime: Time for which the key is kept, in seconds, at least one hour. Default: one day.
            key_retry_failed: Retry the existing task of this key if it has failed or expired. Default: False.
            max_attempts: Maximum number of attempts, at least 1. Default: 4.
            retry_policy: Delay between attempts. Default: 1 second, doubled each time, at most 5 minutes.
            timeout: Maximum duration of one run of the handler, in seconds. Default: no limit.
            expires_in: Time after which the task expires if it has not started, in seconds. Default: never.
            priority: 0 to 9, 9 first among tasks due in the same minute. Default: 5.
            tags: Labels to filter by.
            artifacts: Published files by name. The worker fetches them before the handler runs.

        Raises:
            Invalid: If an argument is invalid; nothing is written.
            Conflict: If the key belongs to a different task.
        """
        task = NewTask(
            task_type=task_type,
            input=input,
            delay=delay,
            at=at,
            key=key,
            key_scope=key_scope,
            key_lifetime=key_lifetime,
            key_retry_failed=key_retry_failed,
            max_attempts=max_attempts,
            retry_policy=retry_policy,
            timeout=timeout,
            expires_in=expires_in,
            priority=priority,
            tags=tags,
            artifacts=artifacts,
        )
        return await self._submit(task)

    async def _submit(self, task: NewTask) -> Submitted:
        return _models.submitted(await self._loop.call(self._native.submit, task._encode()))

    async def submit_many(self, tasks: Iterable[NewTask]) -> list[Submitted | Error]:
        """Submits many tasks concurrently and returns one result per task, in the same order.

        An `Error` in the list is a task that the store did not accept.

        Raises:
            Invalid: If any task is invalid; nothing is submitted.
        """
        written = [_encode_task(number, task) for number, task in enumerate(tasks)]
        results = await self._loop.call(self._native.submit_many, written)
        return [
            from_description(result["error"]) if "error" in result else _models.submitted(result)
            for result in results
        ]

    async def publish(
        self, path: str | os.PathLike[str], *, name: str | None = None, media_type: str | None = None
    ) -> Artifact:
        """Uploads a file as an artifact, unless the store has it already. Pass the result to `submit(artifacts=…)`."""
        return Artifact(**await self._loop.call(self._native.publish, os.fspath(path), name, media_type))

    async def fetch(self, artifact: Artifact | str, to: str | os.PathLike[str]) -> None:
        """Downloads an artifact to the path `to`, atomically. A copy stays in this machine's cache.

        Raises:
            NotFound: If there is no such artifact.
        """
        await self._loop.call(self._native.fetch, _artifact(artifact), os.fspath(to))

    async def get(self, id: str) -> Task:
        """Reads a task.

        Raises:
            NotFound: If there is no such task.
        """
        return _models.task(await self._loop.call(self._native.get, _id(id)))

    async def history(self, id: str) -> list[Change]:
        """Reads a task's history, oldest change first."""
        return list((await self.get(id)).history)

    async def wait(self, id: str, timeout: Seconds | None = None) -> Task:
        """Waits until a task is final and returns it.

        Args:
            id: Id of the task.
            timeout: Longest wait, in seconds or as a `timedelta`. Default: no limit.

        Raises:
            NotYet: If the task is not final after `timeout`. Also a `TimeoutError`.
        """
        timeout_secs = None if timeout is None else seconds("timeout", timeout)
        return _models.task(await self._loop.call(self._native.wait, _id(id), timeout_secs))

    async def list(
        self,
        *,
        status: Status | str | None = None,
        task_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        on_corrupt: Callable[[Error], None] | None = None,
    ) -> AsyncIterator[Task]:
        """Lists tasks as they are read: `async for task in queue.list(status="failed")`.

        This reads every task of the queue, at least one request per task: use it for tools, not in a hot path.

        Args:
            status: Only tasks with this status.
            task_type: Only tasks of this type.
            tags: Only tasks with all of these tags.
            limit: Largest number of tasks. Default: no limit.
            on_corrupt: Called with a `Corrupt` for each corrupt record, after which the list continues. Default: log a
                warning.
        """
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise Invalid(f"limit must be a whole number, at least 0, got {limit!r}")
        which = {"status": status, "task_type": task_type, "tags": tags or {}}
        listing = checked(self._native.listing, encode("filter", which))
        left = limit
        while left is None or left > 0:
            page = await self._loop.call(listing.next)
            tasks, corrupt = page["tasks"], page["corrupt"]
            if not tasks and not corrupt:
                return
            for description in corrupt:
                (on_corrupt or _warn)(from_description(description))
            for record in tasks[:left]:
                yield _models.task(record)
            if left is not None:
                left -= len(tasks)

    async def cancel(self, id: str) -> Task:
        """Cancels a task: a pending one immediately, a running one at the next renewal of its claim.

        Raises:
            NotFound: If there is no such task.
            Conflict: If the task is final.
        """
        return _models.task(await self._loop.call(self._native.cancel, _id(id)))

    async def retry(self, id: str) -> Task:
        """Retries a failed, cancelled or expired task.

        Raises:
            NotFound: If there is no such task.
            Conflict: If the task has another status.
        """
        return _models.task(await self._loop.call(self._native.retry, _id(id)))

    async def reschedule(
        self, id: str, at: datetime.datetime | None = None, *, delay: Seconds | None = None
    ) -> Task:
        """Changes the time at which a pending task is due: `at` a time, or after `delay`."""
        if (at is None) == (delay is None):
            raise Invalid("pass either at or delay")
        if delay is not None:
            try:
                at = self.now() + datetime.timedelta(seconds=seconds("delay", delay))
            except OverflowError:
                raise Invalid(f"delay is out of range: {delay!r}") from None
        assert at is not None
        return _models.task(await self._loop.call(self._native.reschedule, _id(id), _moment("at", at)))

    async def purge(self, older_than: Seconds, statuses: Iterable[Status | str] = ()) -> Purged:
        """Removes tasks that have been final for at least `older_than`.

        In the layout `objects` a task is marked first, and deleted by a purge at least a day later; in the layout
        `journal` it is deleted at once.

        Args:
            older_than: Smallest age, in seconds or as a `timedelta`.
            statuses: Only tasks with these final statuses. Default: all final tasks.
        """
        wanted = [str(status) for status in statuses]
        purged = await self._loop.call(self._native.purge, wanted, seconds("older_than", older_than))
        return Purged(purged["marked"], purged["deleted"], tuple(purged["corrupt"]))

    async def check(self, *, repair: bool = False) -> Checked:
        """Checks the queue for inconsistencies, and repairs them if `repair` is true."""
        report = await self._loop.call(self._native.check, repair)
        return Checked(
            tasks=report["tasks"],
            entries=report["entries"],
            others=report["others"],
            uncovered=tuple(report["uncovered"]),
            unneeded=tuple(report["dangling"]),
            leftover=tuple(report["leftover"]),
            corrupt=tuple(corrupt["reason"] for corrupt in report["corrupt"]),
            transient=tuple(entry["key"] for entry in report["healing"]),
            repaired=report["repaired"],
        )

    async def stats(self) -> Stats:
        """Counts pending and running tasks from the index; in the layout `journal` also final ones, from its state."""
        stats = await self._loop.call(self._native.stats)
        shards = {shard: (counts[0], counts[1], counts[2]) for shard, counts in stats.pop("shards").items()}
        return Stats(**stats, shards=shards)

    def ledger(self) -> builtins.list[LedgerLine]:
        """Returns the request counts of this client so far, by verb, purpose and outcome."""
        return [LedgerLine(**line) for line in json.loads(checked(self._native.ledger))]

    async def close(self) -> None:
        """Closes the queue. Pending calls are aborted; workers on it are aborted and awaited."""
        await self._end_calls()
        # The last queue of a process ends the runtime's threads and has to wait for them.
        await asyncio.get_running_loop().run_in_executor(None, self._native.close)

    async def _end_calls(self) -> None:
        """Closes everything but the native queue."""
        self._loop.check_close()
        for worker in list(self._loop.workers.values()):
            await worker.end()
        self._loop.close()


async def connect(
    store: str | os.PathLike[str] | None = None,
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    layout: Literal["objects", "journal"] | None = None,
    shard_prefix_len: int | None = None,
    dispatch_mode: Literal["shared", "direct"] | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    durability: Literal["fsync", "os"] | None = None,
    profile: str | None = None,
    by: str | None = None,
) -> Queue:
    """Opens a queue and creates it if it does not exist.

    Examples: `connect("./data")`, `connect("s3://my-bucket/tasks")`, `connect(bucket="my-tasks")`.

    Settings that you do not pass come from environment variables (`LEASEHOLD_…`, and `AWS_…` for buckets), then
    `leasehold.toml`, then the user's settings file, then defaults.

    Args:
        store: Folder, or address of a bucket such as `s3://my-bucket/tasks`.
        bucket: Name of an S3 bucket, instead of `store`.
        prefix: Path inside `bucket`.
        layout: Layout of a new queue, which an existing one must have. Default: that of the queue; for a new one `"journal"`
            in a folder of this host, and `"objects"` in a bucket, or with `shard_prefix_len` or direct dispatch.
        shard_prefix_len: Number of hex digits of a shard name, 1 to 4, in the layout `objects`. Must match the queue if it
            exists. Default: that of the queue, or 1 for a new queue.
        dispatch_mode: `"shared"` offers tasks to all workers, `"direct"` sends each task to the inbox of one worker, if a
            worker has an inbox. Default: `"shared"`.
        endpoint: URL of an S3-compatible store.
        region: Region of the bucket.
        access_key_id: Credentials, together with `secret_access_key`.
        secret_access_key: Credentials, together with `access_key_id`.
        durability: Durability of writes to a folder: `"fsync"` waits for the disk, `"os"` leaves writing to the operating
            system. Default: `"fsync"`.
        profile: Profile of the settings files. Default: none.
        by: Name of the caller in the history of tasks. Default: `python`.

    Raises:
        Invalid: If a setting is invalid or does not match the existing queue.
        Denied: If the store denies access.
        Unavailable: If the store does not respond.
    """
    overrides = {
        "queue.store": address(store, bucket, prefix),
        "queue.layout": layout,
        "queue.shard_prefix_len": shard_prefix_len,
        "queue.dispatch_mode": dispatch_mode,
        "queue.endpoint": endpoint,
        "queue.region": region,
        "queue.access_key_id": access_key_id,
        "queue.secret_access_key": secret_access_key,
        "queue.durability": durability,
    }
    loop = Loop()
    try:
        return await open_queue(loop, _native.Queue.connect, profile, settings(overrides), by)
    except BaseException:
        loop.close()
        raise


async def open_queue(loop: Loop, start: Any, *args: object) -> Queue:
    """Opens a queue with a constructor of the native module."""
    natives: builtins.list[_native.Queue] = []

    def begin(*arguments: object) -> _native.Call:
        native, call = start(*arguments)
        natives.append(native)
        assert isinstance(call, _native.Call)
        return call

    try:
        about = await loop.call(begin, *args)
    except BaseException:
        for native in natives:
            native.close()
        raise
    return Queue(loop, natives[0], about)


def _warn(error: Error) -> None:
    log.warning("corrupt task record skipped: %s", error)


def settings(values: Mapping[str, object]) -> dict[str, str]:
    """Formats settings as in environment variables, without those that are `None`."""
    return {name: _setting(name, value) for name, value in values.items() if value is not None}


def _setting(name: str, value: object) -> str:
    return _unicode(name, _as_text(value))


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (builtins.list, tuple)):
        return ",".join(str(part) for part in value)
    return str(value)


def address(store: str | os.PathLike[str] | None, bucket: str | None, prefix: str | None) -> str | None:
    if bucket is None:
        if prefix is not None:
            raise Invalid("prefix needs a bucket; pass bucket too")
        path = None if store is None else os.fspath(store)
        if isinstance(path, bytes):
            raise Invalid(f"store must be a str or a path, got bytes; write os.fsdecode({path!r})")
        return path
    if store is not None:
        raise Invalid("pass either store or bucket")
    if "/" in _text("bucket", bucket) or not bucket:
        raise Invalid(f"`{bucket}` is not a bucket name; write connect(bucket='name', prefix='a/b')")
    return f"s3://{bucket}/{prefix.strip('/')}" if prefix else f"s3://{bucket}"


_LONGEST = datetime.timedelta.max.total_seconds()


def seconds(what: str, value: Seconds) -> float:
    secs = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 <= secs <= _LONGEST:
        raise Invalid(f"{what} must be a number of seconds from 0 to {_LONGEST:.0f}, got {value!r}")
    return float(secs)


def _whole(what: str, value: Seconds) -> int:
    """Rounds up to whole seconds."""
    return int(-(-seconds(what, value) // 1))


def _moment(what: str, value: datetime.datetime) -> str:
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise Invalid(f"{what} must be a datetime with a time zone, such as datetime.now(timezone.utc), got {value!r}")
    try:
        return value.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")
    except OverflowError:
        raise Invalid(f"{what} is out of range: {value}") from None


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a str, got {type(value).__name__}")
    return _unicode(what, value)


def _unicode(what: str, text: str) -> str:
    """Rejects lone surrogates, such as those of undecodable file names."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {text!r} is not valid Unicode: {error.reason}") from None
    return text


def _encode_task(number: int, task: object) -> str:
    """Encodes one task of many; an error names its position."""
    if not isinstance(task, NewTask):
        raise Invalid(f"tasks[{number}] must be a leasehold.NewTask, got {type(task).__name__}")
    try:
        return task._encode()
    except Invalid as error:
        raise Invalid(f"tasks[{number}]: {error}") from error


def _id(id: object) -> str:
    return _text("task id", id)


def _artifact(artifact: Artifact | str) -> str:
    return artifact.id if isinstance(artifact, Artifact) else _text("artifact", artifact)
