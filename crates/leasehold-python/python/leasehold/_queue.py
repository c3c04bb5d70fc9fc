"""A queue, on asyncio."""

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


class SubmitOptions(TypedDict, total=False):
    """What `Queue.submit` takes by name."""

    delay: Seconds | None
    at: datetime.datetime | None
    key: str | None
    key_scope: Literal["queue", "task_type"]
    key_lifetime: Seconds | None
    key_retry_failed: bool
    max_attempts: int | None
    retry_policy: RetryPolicy | None
    timeout: Seconds | None
    expires_in: Seconds | None
    priority: int | None
    tags: Mapping[str, str] | None
    artifacts: Mapping[str, Artifact | str] | None


class ConnectOptions(TypedDict, total=False):
    """What `connect` takes by name."""

    bucket: str | None
    prefix: str | None
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
class Order:
    """A task for `Queue.submit_many`: what `Queue.submit` takes, as a value."""

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

    def _written(self) -> str:
        """As a line of `submit-many`."""
        said: dict[str, Any] = {"task_type": _text("task type", self.task_type)}
        if self.delay is not None:
            said["delay_secs"] = seconds("delay", self.delay)
        if self.at is not None:
            said["at"] = _moment("at", self.at)
        if self.key is not None:
            said["key"] = _text("key", self.key)
            said["key_scope"] = self.key_scope
            if self.key_lifetime is not None:
                said["key_lifetime_secs"] = _whole("key_lifetime", self.key_lifetime)
            if self.key_retry_failed:
                said["key_retry_failed"] = True
        elif self.key_lifetime is not None or self.key_retry_failed:
            option = "key_retry_failed" if self.key_lifetime is None else "key_lifetime"
            raise Invalid(f"{option} is of no use without a key")
        if self.max_attempts is not None:
            said["max_attempts"] = self.max_attempts
        if self.retry_policy is not None:
            said["retry_policy"] = self.retry_policy
        if self.timeout is not None:
            said["timeout_secs"] = _whole("timeout", self.timeout)
        if self.expires_in is not None:
            said["expires_secs"] = _whole("expires_in", self.expires_in)
        if self.priority is not None:
            said["priority"] = self.priority
        if self.tags:
            said["tags"] = self.tags
        if self.artifacts:
            said["artifacts"] = {name: _artifact(artifact) for name, artifact in self.artifacts.items()}
        # The input is written apart, so that a complaint names it.
        return f'{encode("order", said)[:-1]},"input":{encode("input", self.input)}}}'


class Queue:
    """A queue: tasks in a bucket or in a folder. `connect` opens one.

    It belongs to the event loop on which it was opened and to the process that opened it. Close it when you are done,
    or use it as `async with await connect(…) as queue`.
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
        """The queue's own name, for good."""
        return str(self._about["id"])

    @property
    def shard_prefix_len(self) -> int:
        """How many hex digits name a shard."""
        return int(self._about["shard_prefix_len"])

    @staticmethod
    def all_shards(digits: int) -> list[str]:
        """The names of all shards of a queue with so many digits."""
        return checked(_native.all_shards, digits)

    def now(self) -> datetime.datetime:
        """The present, in the store's time."""
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
        """Submits a task. Once this returns, it survives the crash of any process.

        `input` is anything that can be written as JSON, a dataclass or a Pydantic model. `delay` (seconds) or `at` says
        when it may start; `key` submits it only once, for a day unless `key_lifetime` says otherwise, and
        `key_retry_failed` retries the task of that key if it has failed or expired; `timeout` bounds
        one run of its handler; after `expires_in` it is not worth starting any more; `priority` is 0 to 9, 9 first.
        `artifacts` are files that were published before: they are brought to the worker before the handler runs.
        """
        order = Order(
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
        return Submitted(**await self._loop.call(self._native.submit, order._written()))

    async def submit_many(self, orders: Iterable[Order]) -> list[Submitted | Error]:
        """Submits many tasks, several at once. Each has its own result, in the order of the tasks.

        A mistake in any of them submits nothing and is raised; what the store does not take is an error in the list.
        """
        written = [_written(number, order) for number, order in enumerate(orders)]
        results = await self._loop.call(self._native.submit_many, written)
        return [
            from_description(result["error"]) if "error" in result else Submitted(**result)
            for result in results
        ]

    async def publish(
        self, path: str | os.PathLike[str], *, name: str | None = None, media_type: str | None = None
    ) -> Artifact:
        """Puts a file into the store under its hash, unless it is there; tasks can be given it then."""
        return Artifact(**await self._loop.call(self._native.publish, os.fspath(path), name, media_type))

    async def fetch(self, artifact: Artifact | str, to: str | os.PathLike[str]) -> None:
        """Puts an artifact at this path, whole or not at all. It stays in the cache of this machine."""
        await self._loop.call(self._native.fetch, _artifact(artifact), os.fspath(to))

    async def get(self, id: str) -> Task:
        """Reads a task; `NotFound` if there is none."""
        return _models.task(await self._loop.call(self._native.get, _id(id)))

    async def history(self, id: str) -> list[Change]:
        """Reads how a task came to be what it is, oldest change first."""
        return list((await self.get(id)).history)

    async def wait(self, id: str, timeout: Seconds | None = None) -> Task:
        """Waits until a task is final, and gives it; `NotYet`, a `TimeoutError`, after `timeout`."""
        patience = None if timeout is None else seconds("timeout", timeout)
        return _models.task(await self._loop.call(self._native.wait, _id(id), patience))

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

        Every task of the queue is read for that, so it is for people and tools. The list goes on after what cannot be
        read as a task: `on_corrupt` gets a `Corrupt` that names it; without, a warning is logged.
        """
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise Invalid(f"limit {limit!r} is not a number of tasks")
        which = {"status": status, "task_type": task_type, "tags": tags or {}}
        listing = checked(self._native.listing, encode("filter", which))
        left = limit
        while left is None or left > 0:
            page = await self._loop.call(listing.next)
            tasks, corrupt = page["tasks"], page["corrupt"]
            if not tasks and not corrupt:
                return
            for told in corrupt:
                (on_corrupt or _warn)(from_description(told))
            for record in tasks[:left]:
                yield _models.task(record)
            if left is not None:
                left -= len(tasks)

    async def cancel(self, id: str) -> Task:
        """Calls a task off: at once if it waits; a running one is stopped by its worker at the next renewal."""
        return _models.task(await self._loop.call(self._native.cancel, _id(id)))

    async def retry(self, id: str) -> Task:
        """Lets a task run again that has failed, was cancelled or has expired."""
        return _models.task(await self._loop.call(self._native.retry, _id(id)))

    async def reschedule(
        self, id: str, at: datetime.datetime | None = None, *, delay: Seconds | None = None
    ) -> Task:
        """Plans a waiting task for another time: `at` a moment, or after `delay`."""
        if (at is None) == (delay is None):
            raise Invalid("say either at or delay")
        if delay is not None:
            try:
                at = self.now() + datetime.timedelta(seconds=seconds("delay", delay))
            except OverflowError:
                raise Invalid(f"delay {delay!r} lies beyond all calendars") from None
        assert at is not None
        return _models.task(await self._loop.call(self._native.reschedule, _id(id), _moment("at", at)))

    async def purge(self, older_than: Seconds, statuses: Iterable[Status | str] = ()) -> Purged:
        """Removes tasks that have been final for so long: all of them, or those in these states.

        A task is marked first, and deleted by a purge a day later.
        """
        wanted = [str(status) for status in statuses]
        told = await self._loop.call(self._native.purge, wanted, seconds("older_than", older_than))
        return Purged(told["marked"], told["deleted"], tuple(told["corrupt"]))

    async def check(self, *, repair: bool = False) -> Checked:
        """Checks the queue for inconsistencies, and repairs them if asked to."""
        told = await self._loop.call(self._native.check, repair)
        return Checked(
            tasks=told["tasks"],
            entries=told["entries"],
            others=told["others"],
            uncovered=tuple(told["uncovered"]),
            dangling=tuple(told["dangling"]),
            leftover=tuple(told["leftover"]),
            corrupt=tuple(corrupt["reason"] for corrupt in told["corrupt"]),
            healing=tuple(healing["key"] for healing in told["healing"]),
            repaired=told["repaired"],
        )

    async def stats(self) -> Stats:
        """Counts what waits and what runs, by the index."""
        told = await self._loop.call(self._native.stats)
        shards = {shard: (counts[0], counts[1], counts[2]) for shard, counts in told.pop("shards").items()}
        return Stats(**told, shards=shards)

    def ledger(self) -> builtins.list[LedgerLine]:
        """Every request that this client has sent so far, by verb, purpose and outcome."""
        return [LedgerLine(**line) for line in json.loads(checked(self._native.ledger))]

    async def close(self) -> None:
        """Leaves the queue. Calls under way are given up; workers on it are aborted, and waited for."""
        self._loop.check_close()
        for worker in list(self._loop.workers.values()):
            await worker.end()
        self._loop.close()
        # With the last queue of the process its threads end, and someone has to wait for them.
        await asyncio.get_running_loop().run_in_executor(None, self._native.close)


async def connect(
    store: str | os.PathLike[str] | None = None,
    *,
    bucket: str | None = None,
    prefix: str | None = None,
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
    """Opens a queue, or founds it: `connect("./data")`, `connect("s3://my-bucket/tasks")`, `connect(bucket="my-tasks")`.

    What is not said here is as everywhere: variables (`LEASEHOLD_…`, and `AWS_…` for buckets), then `leasehold.toml`,
    then the user's file, then defaults; `profile` names one of their profiles. `shard_prefix_len` must agree with the
    queue if it is there already. With `dispatch_mode="direct"` what is submitted goes into the inbox of one worker that
    has one, if there is such a worker. `durability` says when a write to a folder counts as done: on the disk (`fsync`), or
    with the operating system (`os`). `by` is who acts, in the history of tasks.
    """
    said = {
        "queue.store": _address(store, bucket, prefix),
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
        return await opened(loop, _native.Queue.connect, profile, settings(said), by)
    except BaseException:
        loop.close()
        raise


async def opened(loop: Loop, start: Any, *args: object) -> Queue:
    """The queue that the native half opens."""
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
    log.warning("left out of the list: %s", error)


def settings(said: Mapping[str, object]) -> dict[str, str]:
    """Settings as one would write them into variables, without those that were not said."""
    return {name: _setting(name, value) for name, value in said.items() if value is not None}


def _setting(name: str, value: object) -> str:
    return _unicode(name, _as_text(value))


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (builtins.list, tuple)):
        return ",".join(str(part) for part in value)
    return str(value)


def _address(store: str | os.PathLike[str] | None, bucket: str | None, prefix: str | None) -> str | None:
    if bucket is None:
        if prefix is not None:
            raise Invalid("a prefix is part of a bucket; say bucket too")
        path = None if store is None else os.fspath(store)
        if isinstance(path, bytes):
            raise Invalid(f"a path is text, not bytes; write os.fsdecode({path!r})")
        return path
    if store is not None:
        raise Invalid("say either where the store is, or bucket")
    if "/" in _text("bucket", bucket) or not bucket:
        raise Invalid(f"`{bucket}` is not the name of a bucket; write connect(bucket='name', prefix='a/b')")
    return f"s3://{bucket}/{prefix.strip('/')}" if prefix else f"s3://{bucket}"


_LONGEST = datetime.timedelta.max.total_seconds()


def seconds(what: str, value: Seconds) -> float:
    secs = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 <= secs <= _LONGEST:
        raise Invalid(f"{what} {value!r} is not a number of seconds from now on")
    return float(secs)


def _whole(what: str, value: Seconds) -> int:
    """In whole seconds; a part of one counts as one."""
    return int(-(-seconds(what, value) // 1))


def _moment(what: str, value: datetime.datetime) -> str:
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise Invalid(f"{what} needs a datetime with a time zone, such as datetime.now(timezone.utc)")
    try:
        return value.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")
    except OverflowError:
        raise Invalid(f"{what} {value} lies beyond all calendars") from None


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise Invalid(f"the {what} is text, not {type(value).__name__}")
    return _unicode(f"the {what}", value)


def _unicode(what: str, text: str) -> str:
    """Refuses half characters (surrogates), such as stand for odd bytes in the names of files."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {text!r} is not Unicode: {error.reason}") from None
    return text


def _written(number: int, order: object) -> str:
    """One order of many: a complaint says which."""
    if not isinstance(order, Order):
        raise Invalid(f"orders[{number}] is not a leasehold.Order, but {type(order).__name__}")
    try:
        return order._written()
    except Invalid as error:
        raise Invalid(f"orders[{number}]: {error}") from error


def _id(id: object) -> str:
    return _text("id of a task", id)


def _artifact(artifact: Artifact | str) -> str:
    return artifact.id if isinstance(artifact, Artifact) else _text("artifact", artifact)
