"""JSON encoding of inputs and outputs. Supports dataclasses and Pydantic models; neither is required."""

from __future__ import annotations

import collections.abc
import contextlib
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


def fit(wanted: Any, value: Any, name: str = "input", strict: bool = True) -> Any:
    """Converts a decoded JSON value to an annotated type: a JSON type, a dataclass, a Pydantic model, or a combination.

    Any other annotation is not checked, and the value returned as it is.

    Args:
        wanted: The annotation.
        value: The value.
        name: Name of the value in errors.
        strict: Check JSON types, too, and convert lists to tuples. Otherwise only dataclasses and models are converted.

    Raises:
        TypeError, ValueError: If the value does not have this type.
    """
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(wanted, value, name, strict)
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _union(parts, value, name, strict)
    if origin in _LISTS or wanted in _LISTS:
        return _list(origin or wanted, parts, value, name, strict)
    if origin in _DICTS or wanted in _DICTS:
        return _dict(parts, value, name, strict)
    if strict and origin is typing.Literal:
        _check_literal(parts, value, name)
    if strict and wanted in _SCALARS:
        return _scalar(_SCALARS[wanted], value, name)
    return value


_SCALARS: dict[Any, tuple[type[Any], ...]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    bool: (bool,),
    None: (type(None),),
    type(None): (type(None),),
}
"""JSON types by annotation."""
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _shown(value: object) -> str:
    """Names the type of a JSON value, and a short value."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__


def _scalar(accepted: tuple[type[Any], ...], value: Any, name: str) -> Any:
    # A bool is an int in Python, but not in JSON.
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        wanted = "None" if accepted[0] is type(None) else accepted[0].__name__
        raise TypeError(f"{name} must be {wanted}, got {_shown(value)}")
    return accepted[0](value) if float in accepted else value


def _check_literal(parts: tuple[Any, ...], value: Any, name: str) -> None:
    if not any(value == part and type(value) is type(part) for part in parts):
        raise TypeError(f"{name} must be one of {', '.join(map(repr, parts))}, got {_shown(value)}")


def _list(kind: Any, parts: tuple[Any, ...], value: Any, name: str, strict: bool) -> Any:
    if strict and not isinstance(value, list):
        raise TypeError(f"{name} must be a list, got {_shown(value)}")
    if not isinstance(value, list) or not (strict or kind is list):
        return value
    is_fixed = kind is tuple and parts and parts[-1] is not Ellipsis
    if is_fixed and len(parts) != len(value):
        raise TypeError(f"{name} must have {len(parts)} items, got {len(value)}")
    each = parts if is_fixed else (parts[:1] or (Any,)) * len(value)
    items = [
        fit(part, item, f"{name}[{number}]", strict) for number, (part, item) in enumerate(zip(each, value, strict=True))
    ]
    return tuple(items) if kind is tuple else items


def _dict(parts: tuple[Any, ...], value: Any, name: str, strict: bool) -> Any:
    if isinstance(value, dict):
        return {key: fit(parts[1], item, f"{name}[{key!r}]", strict) for key, item in value.items()} if parts else value
    if strict:
        raise TypeError(f"{name} must be an object, got {_shown(value)}")
    return value


def _dataclass(wanted: type, value: Any, name: str, strict: bool) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object for {wanted.__qualname__}, got {_shown(value)}")
    try:
        hints = typing.get_type_hints(wanted)
    except NameError:
        # Hints that only a type checker can resolve.
        hints = {}
    # Fields that the dataclass computes itself (init=False) were encoded with the rest.
    own = {field.name for field in dataclasses.fields(wanted) if not field.init}
    return wanted(**{
        key: fit(hints.get(key, Any), item, f"{name}.{key}", strict)
        for key, item in value.items()
        if key not in own
    })


def _union(parts: tuple[Any, ...], value: Any, name: str, strict: bool) -> Any:
    if value is None and type(None) in parts:
        return None
    others = [part for part in parts if part is not type(None)]
    if len(others) == 1:
        return fit(others[0], value, name, strict)
    if not strict:
        # With several models the intended one is ambiguous.
        return value
    fitting = []
    for part in others:
        with contextlib.suppress(TypeError, ValueError):
            fitting.append(fit(part, value, name))
    if not fitting:
        raise TypeError(f"{name} must be {' or '.join(_named(part) for part in others)}, got {_shown(value)}")
    return fitting[0] if len(fitting) == 1 else value


def _named(part: Any) -> str:
    return str(getattr(part, "__name__", part))
