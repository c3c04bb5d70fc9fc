"""Messages between a worker and the processes of its handlers."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._handlers import without_own_frames


class RemoteTraceback(Exception):
    """Traceback of an exception in the process of a handler."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class RunTask:
    """Runs a task."""

    module: str
    name: str
    input: Any
    id: str
    attempt: int
    epoch: int
    task: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The handler should stop."""


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a method of the run."""

    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The process should end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a call or of a handler: a value, or an exception with its traceback."""

    value: Any = None
    error: bytes | None = None
    """The exception, pickled: a class of the main module has another name in the other process."""
    text: str = ""
    trace: str = ""

    def get(self) -> Any:
        """Returns the value or raises the exception."""
        if self.error is None:
            return self.value
        try:
            error = pickle.loads(self.error)
        except Exception:
            error = RuntimeError(self.text)
        raise error from RemoteTraceback(self.trace)


def outcome_of(work: Callable[[], Any]) -> Outcome:
    """Calls a function and returns its result, or its exception in a form that another process can read."""
    try:
        return Outcome(work())
    except BaseException as error:
        without_own_frames(error)
        trace, text = "".join(traceback.format_exception(error)), f"{type(error).__name__}: {error}"
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = pickle.dumps(RuntimeError(text))
        return Outcome(None, pickled, text, trace)
