"""Functions whose calls can be submitted as tasks."""

from __future__ import annotations

import copy
import difflib
import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, final, overload

from ._arguments import Arguments
from ._errors import Invalid, NotCompleted
from ._handlers import Context, check_task, is_async_function, names_around
from ._models import RetryPolicy, Status, Submitted, Task
from ._queue import CommonOptions, NewTask, Seconds

if TYPE_CHECKING:
    from ._app import Leasehold

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskOptions(CommonOptions, total=False):
    """Options of a task: of all calls in `Leasehold.task`, of one call in `TaskFunction.options`."""

    retry: RetryPolicy | None
    """Delay between attempts. Default: 1 second, doubled each time, at most 5 minutes."""


@dataclass(frozen=True)
class Submission(Submitted, Generic[T]):
    """A call that was submitted. The task is durable: it survives the crash of any process."""

    _function: TaskFunction[..., Any, T] = field(kw_only=True, repr=False, compare=False)

    def wait(self, timeout: Seconds | None = None) -> Task:
        """Waits until the task is final and returns it.

        Raises:
            NotYet: If the task is not final after `timeout`. Also a `TimeoutError`.
        """
        return self._function.app._connection.call(lambda queue: queue.wait(self.id, timeout), "….wait_async(…)")

    async def wait_async(self, timeout: Seconds | None = None) -> Task:
        """Waits until the task is final and returns it, in async code."""
        return await self._function.app._connection.call_async(lambda queue: queue.wait(self.id, timeout))

    def result(self, timeout: Seconds | None = None) -> T:
        """Waits until the task is final and returns its output, as the function's return type.

        Raises:
            NotCompleted: If the task failed, expired or was cancelled.
            NotYet: If the task is not final after `timeout`. Also a `TimeoutError`.
        """
        call = self._function.app._connection.call
        return self._output(call(lambda queue: queue.wait(self.id, timeout), "….result_async(…)"))

    async def result_async(self, timeout: Seconds | None = None) -> T:
        """Waits until the task is final and returns its output, in async code."""
        return self._output(await self.wait_async(timeout))

    def _output(self, task: Task) -> T:
        if task.status is not Status.COMPLETED:
            raise NotCompleted(task)
        result: T = self._function.arguments.result(task.output)
        return result


@final
class TaskFunction(Generic[P, R, T]):
    """A function whose calls can be submitted as tasks: the result of `@app.task`.

    Called, it calls the function directly, for tests. If the function takes a context, it gets that of a first attempt.
    """

    def __init__(
        self,
        app: Leasehold,
        name: str,
        function: Callable[..., R],
        is_in_process: bool,
        options: TaskOptions,
        names: Mapping[str, Any] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.app = app
        self.name = name
        self.function = function
        self.arguments = Arguments(function, names)
        self.is_async = is_async_function(function)
        self.is_in_process = is_in_process
        self.max_attempts = options.get("max_attempts")
        if is_in_process and self.is_async:
            raise Invalid(f'executor="process" is for functions that are not async; {name} is async')
        self._options = options

    def __repr__(self) -> str:
        return f"<leasehold.TaskFunction {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.arguments.takes_context:
            from .testing import context

            return self.function(context(task_type=self.name), *args, **kwargs)
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[TaskOptions]) -> TaskFunction[P, R, T]:
        """Returns this function with other options, for some calls: `send.options(delay=60).submit(…)`."""
        changed = copy.copy(self)
        changed._options = self._options | check_options("options", options)
        own, wanted = self.max_attempts, changed._options.get("max_attempts")
        if own is not None and wanted is not None and wanted > own:
            raise Invalid(f"max_attempts of {self.name} is at most {own}, as in its definition, got {wanted}")
        return changed

    def new_task(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Returns the task for a call without submitting it, for `Leasehold.submit_many`.

        Raises:
            Invalid: If the function does not take these arguments, or JSON cannot represent one.
        """
        return new_task(self.name, self.arguments.encode(args, kwargs), self._options)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Submission[T]:
        """Submits a call with these arguments. Once this returns, the task survives the crash of any process.

        Raises:
            Invalid: If the function does not take these arguments; nothing is written. Also in async code, which has to
                use `submit_async`.
            Conflict: If the key belongs to a different task.
        """
        task = self.new_task(*args, **kwargs)
        call = self.app._connection.call
        return self._submission(call(lambda queue: queue._submit(task), f"{self.name}.submit_async(…)"))

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> Submission[T]:
        """Submits a call with these arguments, in async code on any event loop."""
        task = self.new_task(*args, **kwargs)
        return self._submission(await self.app._connection.call_async(lambda queue: queue._submit(task)))

    def _submission(self, submitted: Submitted) -> Submission[T]:
        return Submission(
            submitted.id, submitted.is_new, submitted.existing, submitted.is_retried, _function=self
        )


def new_task(name: str, input: Any, options: TaskOptions) -> NewTask:
    """Returns a task with these options."""
    fields: dict[str, Any] = dict(options)
    fields["retry_policy"] = fields.pop("retry", None)
    return NewTask(task_type=name, input=input, **fields)


def check_options(call: str, options: TaskOptions) -> TaskOptions:
    """Rejects options that do not exist, at the line that has them."""
    known = sorted(TaskOptions.__annotations__)
    for name in options.keys() - set(known):
        [*similar] = difflib.get_close_matches(name, known, 1)
        advice = f"; did you mean {similar[0]!r}?" if similar else ""
        raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{advice}")
    # Durations, times and the like are checked when a task is encoded; numbers only when it is submitted.
    new_task("task", None, options)._encode()
    check_task("task", options.get("max_attempts"))
    priority = options.get("priority")
    if priority is not None and priority not in range(10):
        raise Invalid(f"priority must be 0 to 9, got {priority!r}")
    return options


class _Anything:
    """Only functions whose first parameter is `Any` or `object` accept this: that parameter is no context."""


@final
class TaskDecorator:
    """`@app.task`, with or without options."""

    def __init__(self, app: Leasehold, name: str | None, is_in_process: bool, options: TaskOptions) -> None:
        self._app = app
        self._name = name
        self._is_in_process = is_in_process
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[Concatenate[Any, P], Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[_Anything, P], T], /
    ) -> TaskFunction[Concatenate[Any, P], T, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> TaskFunction[P, T, T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> TaskFunction[P, T, T]: ...
    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        executor: Literal["process"] | None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskDecorator: ...
    def __call__(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        executor: Literal["process"] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Makes a function a task, or returns a decorator with these options.

        The function may be async; if it is not, it runs in a thread. Its arguments are JSON values, dataclasses or Pydantic
        models. If its first parameter is annotated with `Context`, it gets the context of the run. Its return value becomes
        the output and completes the task; an exception fails the attempt.

        Args:
            function: The function.
            name: Type of its tasks. Default: the name of the function.
            executor: `"process"` runs the function in a process of its own, for work that keeps a core busy or may crash. It
                must be at module level and not async.
            **options: Defaults of its calls, see `Queue.submit`. `max_attempts` also limits tasks submitted otherwise.
        """
        if function is None:
            if executor not in (None, "process"):
                raise Invalid(f'executor must be "process" or None, got {executor!r}')
            options = self._options | check_options("task", options)
            return TaskDecorator(self._app, name or self._name, self._is_in_process or executor is not None, options)
        if name is not None or executor is not None or options:
            raise Invalid("write @app.task(…) with the options, above the function")
        if not callable(function):
            raise Invalid(f"a task must be a function, got {function!r}; write @app.task(name=…) to name it")
        return self._app._add(function, self._name, self._is_in_process, self._options, names_around())
