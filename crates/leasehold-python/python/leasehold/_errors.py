"""What can go wrong, and what handlers raise on purpose."""

from __future__ import annotations

import datetime
import json
from typing import Any, ClassVar


class Error(Exception):
    """A failure. Its class says what to do about it, its message names the thing."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        """Whether a write of ours may have happened, or may still happen."""


class Unavailable(Error):
    """The store did not answer in time: try again later."""

    kind = "unavailable"


class Denied(Error):
    """The store refused us: fix the credentials or the permissions."""

    kind = "denied"


class Invalid(Error):
    """The call or a setting is wrong: fix it."""

    kind = "invalid"


class Corrupt(Error):
    """Something in the store cannot be understood: stop, keep it, look at it."""

    kind = "corrupt"


class Lost(Error):
    """What we held belongs to someone else now: stop acting on it."""

    kind = "lost"


class Internal(Error):
    """A bug of ours."""

    kind = "internal"


class NotFound(Invalid):
    """There is no such task in this queue."""


class Conflict(Invalid):
    """It contradicts what is there: the state of a task, or another task with the same key."""


class NotYet(Unavailable, TimeoutError):
    """What was waited for has not happened in time."""


_KINDS: dict[str, type[Error]] = {
    each.kind: each for each in (Unavailable, Denied, Invalid, Corrupt, Lost, Internal)
}
_MATTERS: dict[str, type[Error]] = {"missing": NotFound, "conflict": Conflict, "not-yet": NotYet}


def from_description(told: dict[str, Any]) -> Error:
    """The exception for an error as the native half describes it."""
    kind = _MATTERS.get(told["matter"] or "") or _KINDS.get(told["kind"], Internal)
    return kind(told["message"], outcome_unknown=told["outcome_unknown"])


def from_text(text: str) -> Error:
    return from_description(json.loads(text))


class Permanent(Exception):
    """Raised by a handler: the task has failed for good, no further attempt would help."""


class Retry(Exception):
    """Raised by a handler: the attempt has failed, and another may help.

    Any other exception says the same. This one can also say when: `Retry("busy", after=30)` tries again after thirty
    seconds, whatever the task's retry policy says.
    """

    def __init__(self, message: str = "", *, after: float | datetime.timedelta | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else _pause("after", after)


class Snooze(Exception):
    """Raised by a handler: not now, run the task again after so many seconds. Does not count as an attempt."""

    def __init__(self, seconds: float | datetime.timedelta) -> None:
        # As it was given, so that it can be sent to another process.
        super().__init__(seconds)
        self.seconds = _pause("seconds", seconds)

    def __str__(self) -> str:
        return f"again in {self.seconds} s"


def _pause(what: str, value: float | datetime.timedelta) -> float:
    secs = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if not 0 <= secs < float("inf"):
        raise ValueError(f"{what}={value!r} is not a number of seconds from now on")
    return secs
