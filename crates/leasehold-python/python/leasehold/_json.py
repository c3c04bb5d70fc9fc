"""JSON encoding of inputs and outputs. Supports dataclasses and Pydantic models; neither is required."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any

from ._errors import Invalid

_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lambda value: _plain(value)
)
_LARGE = re.compile(r"\d{19}")
_LARGEST = 2**64 - 1
_SMALLEST = -(2**63)


def encode(what: str, value: object) -> str:
    """Encodes a value as JSON.

    Raises:
        Invalid: If JSON cannot represent the value. Nothing is converted lossily.
    """
    try:
        text = _encoder.encode(value)
        if not text.isascii():
            # Python accepts lone surrogates in a str; UTF-8 does not.
            text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the {what} cannot be written as JSON: {error}") from error
    if _LARGE.search(text):
        json.loads(text, parse_int=lambda digits: _check_number(what, digits))
    return text


def _check_number(what: str, digits: str) -> None:
    """Rejects integers beyond 64 bits: they would not survive a round trip."""
    if not _SMALLEST <= int(digits) <= _LARGEST:
        raise Invalid(f"the {what} has the number {digits}, which does not fit into 64 bits; pass it as a str")


def _plain(value: Any) -> object:
    """Converts a value that JSON does not support to one that it does."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    name = type(value).__qualname__
    raise TypeError(f"{name} is neither a JSON type, nor a dataclass, nor a Pydantic model{_advice(value)}")


def _advice(value: object) -> str:
    """Hint for a value with an obvious text form. It is not converted here: the handler would get the text."""
    if isinstance(value, (datetime.date, datetime.time)):
        return "; pass its isoformat()"
    if isinstance(value, uuid.UUID):
        return "; pass its str()"
    if isinstance(value, enum.Enum):
        return "; pass its value"
    return ""


def fit(wanted: Any, value: Any) -> Any:
    """Converts a value to a handler's input type: a Pydantic model, a dataclass, or lists and dicts of them.

    For any other type, returns the decoded JSON value.
    """
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(wanted, value)
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _union(parts, value)
    if origin is list and isinstance(value, list):
        return [fit(parts[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: fit(parts[1], item) for key, item in value.items()}
    return value


def _dataclass(wanted: type, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{wanted.__qualname__} needs a JSON object, got {type(value).__name__}")
    try:
        hints = typing.get_type_hints(wanted)
    except NameError:
        # Hints that only a type checker can resolve.
        hints = {}
    # Fields that the dataclass computes itself (init=False) were encoded with the rest.
    own = {field.name for field in dataclasses.fields(wanted) if not field.init}
    return wanted(**{name: fit(hints.get(name, Any), item) for name, item in value.items() if name not in own})


def _union(parts: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in parts:
        return None
    others = [part for part in parts if part is not type(None)]
    # With several models the intended one is ambiguous.
    return fit(others[0], value) if len(others) == 1 else value
