"""Errors, and exceptions that handlers raise to control retries."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ._models import Task


class Error(Exception):
    """Base class of all errors. The subclass says what to do about it; the message names what failed."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        """True if a write may have happened, or may still happen."""


class Unavailable(Error):
    """The store did not respond in time. Retry later."""

    kind = "unavailable"


class Denied(Error):
    """The store denied access. Fix the credentials or the permissions."""

    kind = "denied"


class Invalid(Error):
    """A call or a setting is invalid. Fix it."""

    kind = "invalid"


class Corrupt(Error):
    """An object in the store is corrupt. Stop, keep the object, and inspect it."""

    kind = "corrupt"


class Lost(Error):
    """A claim or lease was lost: taken by another worker, broken or deleted. Stop acting on it."""

    kind = "lost"


class Internal(Error):
    """A bug in Leasehold. Please report it."""

    kind = "internal"


class NotFound(Invalid):
    """The task or artifact does not exist in this queue."""


class Conflict(Invalid):
    """The call conflicts with existing state: a task's status, or another task with the same key."""


class NotCompleted(Conflict):
    """The task has no result: it failed, expired or was cancelled."""

    def __init__(self, task: Task) -> None:
        reason = (task.error or "").partition("\n")[0]
        super().__init__(f"task {task.id} is {task.status}{f': {reason}' if reason else ''}")
        self.task = task
        """The task."""


class NotYet(Unavailable, TimeoutError):
    """The timeout of a wait expired. Also a `TimeoutError`."""


_KINDS: dict[str, type[Error]] = {
    each.kind: each for each in (Unavailable, Denied, Invalid, Corrupt, Lost, Internal)
}
_REASONS: dict[str, type[Error]] = {"missing": NotFound, "conflict": Conflict, "not-yet": NotYet}


def from_description(description: dict[str, Any]) -> Error:
    """Creates the exception for an error description of the native module."""
    kind = _REASONS.get(description["reason"] or "") or _KINDS.get(description["kind"], Internal)
    return kind(description["message"], outcome_unknown=description["outcome_unknown"])


def from_text(text: str) -> Error:
    return from_description(json.loads(text))


class Permanent(Exception):
    """Raised by a handler to fail the task without further attempts."""


class Retry(Exception):
    """Raised by a handler to fail the attempt and retry the task.

    Any other exception has the same effect. This one can also set the delay: `Retry("busy", after=30)` retries after
    30 seconds, regardless of the task's retry policy.

    Args:
        message: Reason, recorded in the task's history.
        after: Delay until the next attempt, in seconds or as a `timedelta`. Default: by the task's retry policy.
    """

    def __init__(self, message: str = "", *, after: float | datetime.timedelta | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else _pause("after", after)


class Snooze(Exception):
    """Raised by a handler to run the task again later. Does not count as an attempt.

    Args:
        seconds: Delay until the next run, in seconds or as a `timedelta`.
    """

    def __init__(self, seconds: float | datetime.timedelta) -> None:
        # The original argument, so that the exception can be pickled.
        super().__init__(seconds)
        self.seconds = _pause("seconds", seconds)

    def __str__(self) -> str:
        return f"snoozed for {self.seconds} s"


def _pause(what: str, value: float | datetime.timedelta) -> float:
    secs = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if not 0 <= secs < float("inf"):
        raise ValueError(f"{what} must be a finite number of seconds, at least 0, got {value!r}")
    return secs
