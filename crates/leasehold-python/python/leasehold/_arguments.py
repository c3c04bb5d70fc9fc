"""Arguments of a task's function: from a call to the task's input, and from the input to the call of the handler."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import Invalid, Permanent
from ._handlers import Context, underlying
from ._json import encode, fit

_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """Parameters of a function, without its context.

    Args:
        function: The function.
        names: Local names where the function is defined, to resolve its annotations.
    """

    def __init__(self, function: Callable[..., Any], names: Mapping[str, Any] | None) -> None:
        self._function = function
        self._names = names
        self._hints: dict[str, Any] | None = None
        self._name = getattr(function, "__name__", repr(function))
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise Invalid(f"a task must be a function with known parameters: {error}") from None
        plain = underlying(function)
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            raise Invalid(f"a task must return its output; {self._name}() is a generator")
        parameters = list(signature.parameters.values())
        contexts = [number for number, each in enumerate(parameters) if self._is_context(each.annotation)]
        if contexts not in ([], [0]):
            raise Invalid(f"the context must be the first parameter of {self._name}(), and the only one")
        self.takes_context = bool(contexts)
        self._signature = signature.replace(parameters=parameters[len(contexts) :])
        for each in self._signature.parameters.values():
            if each.kind not in _NAMED:
                raise Invalid(f"{self._name}() takes `{each}`; the input of a task has its arguments by name")

    def _is_context(self, annotation: Any) -> bool:
        """True for `Context`, also as a text, and as a text that only a type checker can resolve."""
        if not isinstance(annotation, str):
            return annotation is Context
        # A quoted annotation is a text in a text where all annotations are texts.
        annotation = annotation.strip("'\"")
        if annotation.rpartition(".")[2] != "Context":
            return False
        try:
            names = dict(self._names or {})
            return eval(annotation, underlying(self._function).__globals__, names) is Context
        except (NameError, AttributeError):
            return True

    def _types(self) -> dict[str, Any]:
        """Returns the annotations. Not resolved before the first call, because they may name later definitions."""
        if self._hints is None:
            try:
                self._hints = typing.get_type_hints(underlying(self._function), localns=dict(self._names or {}))
            except Exception:
                # Hints that only a type checker can resolve.
                self._hints = {}
        return self._hints

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the input of a task for a call: JSON values by name of the parameter.

        Raises:
            Invalid: If the function does not take these arguments, or JSON cannot represent one.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid(f"{self._name}(): {error}") from None
        plain = {name: json.loads(encode(f"argument `{name}`", value)) for name, value in bound.arguments.items()}
        try:
            self._convert(plain)
        except (TypeError, ValueError) as error:
            raise Invalid(f"{self._name}(): {error}") from error
        return plain

    def decode(self, input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and named arguments of the handler for the input of a task.

        Raises:
            Permanent: If the input does not fit the function.
        """
        given = {} if input is None else input
        try:
            if not isinstance(given, dict):
                raise TypeError(f"it must be an object with the arguments by name, got {type(given).__name__}")
            for name in given.keys() - self._signature.parameters.keys():
                raise TypeError(f"there is no parameter `{name}`")
            for name, parameter in self._signature.parameters.items():
                if name not in given and parameter.default is parameter.empty:
                    raise TypeError(f"argument `{name}` is missing")
            bound = inspect.BoundArguments(self._signature, self._convert(given))
        except (TypeError, ValueError) as error:
            raise Permanent(f"the input does not fit {self._name}(): {error}") from error
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def result(self, output: Any) -> Any:
        """Converts the output of a completed task to the type that the function returns."""
        return fit(self._types().get("return", Any), output, "output")

    def _convert(self, values: dict[str, Any]) -> dict[str, Any]:
        types = self._types()
        return {name: fit(types.get(name, Any), value, f"`{name}`") for name, value in values.items()}
