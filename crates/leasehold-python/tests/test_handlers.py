"""Handlers: their inputs, their outputs, and how their runs end."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import gc
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pydantic
import pytest

from leasehold import Conflict, Context, Invalid, Permanent, Retry, Snooze, Worker, connect, testing


async def test_an_exception_is_a_retry_with_its_traceback_in_the_history(folder: Path) -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        def helper(input: str) -> None:
            raise ValueError(f"bad luck with {input}")

        @worker.task("sync")
        def sync(ctx: Context, input: str) -> str:
            if ctx.attempt == 1:
                helper(input)
            return "fine"

        @worker.task("async")
        async def not_sync(ctx: Context, input: str) -> str:
            if ctx.attempt == 1:
                helper(input)
            return "fine"

        for task_type in ("sync", "async"):
            task = await queue.submit(task_type, "Ada")
            await worker.run(drain=True)
            history = await queue.history(task.id)
            assert [change.event for change in history] == ["submit", "claim", "fail", "claim", "complete"]
            why = history[2].why or ""
            assert why.startswith("ValueError: bad luck with Ada\n")
            assert "Traceback (most recent call last)" in why
            assert "in helper" in why
            # The traceback begins with the handler, not with the code of the package that called it.
            frames = [line for line in why.splitlines() if line.startswith('  File "')]
            assert __file__ in frames[0], why
            assert history[3].attempt == 2


async def test_a_long_traceback_keeps_its_end() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        def deeper(levels: int) -> None:
            if levels == 0:
                raise RuntimeError("ü" * 3_000)
            deeper(levels - 1) if levels % 2 else deeper(levels - 1)

        @worker.task("dig")
        def dig(ctx: Context, input: int) -> None:
            deeper(input)

        task = await queue.submit("dig", 200, max_attempts=1)
        await worker.run(drain=True)
        failed = await queue.get(task.id)
        assert failed.error is not None and failed.error.startswith("RuntimeError: üüü")
        assert failed.error.rstrip().endswith("ü") and len(failed.error.encode()) <= 4_096


async def test_permanent_is_not_retried() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("hopeless")
        async def hopeless(ctx: Context, input: None) -> None:
            raise Permanent("there is nothing to do")

        task = await queue.submit("hopeless")
        assert (await worker.run(drain=True)).failed == 1
        failed = await queue.get(task.id)
        assert (failed.status, failed.attempt) == ("failed", 1)
        assert failed.error is not None and "there is nothing to do" in failed.error


async def test_snooze_costs_no_attempt() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")
        naps = []

        @worker.task("nap")
        async def nap(ctx: Context, input: None) -> int:
            naps.append(queue.now())
            if len(naps) == 1:
                raise Snooze(30)
            if len(naps) == 2:
                ctx.snooze(10)
            return ctx.attempt

        task = await queue.submit("nap", max_attempts=1)
        await worker.run(drain=True)
        assert (await queue.get(task.id)).output == 1
        assert (await queue.get(task.id)).epoch == 3
        pauses = [(after - before).total_seconds() for before, after in zip(naps, naps[1:])]
        assert 30 <= pauses[0] < 36 and 10 <= pauses[1] < 16


async def test_retry_sets_the_delay() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")
        runs = []

        @worker.task("busy")
        async def busy(ctx: Context, input: None) -> int:
            runs.append(queue.now())
            if ctx.attempt == 1:
                raise Retry("the other side is busy", after=45)
            return ctx.attempt

        task = await queue.submit("busy")
        await worker.run(drain=True)
        assert (await queue.get(task.id)).output == 2
        assert 45 <= (runs[1] - runs[0]).total_seconds() < 51


async def test_max_attempts_of_a_handler() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("fails", max_attempts=2)
        async def fails(ctx: Context, input: None) -> None:
            raise OSError("again")

        own, others = await fails.submit(), await queue.submit("fails", max_attempts=9)
        await worker.run(drain=True)
        for task in (await queue.get(own.id), await queue.get(others.id)):
            assert (task.status, task.attempt, task.max_attempts) == ("failed", 2, 2)
        with pytest.raises(Invalid, match="two handlers"):
            worker.task("fails")(lambda ctx, input: None)
        with pytest.raises(Invalid, match="must take two arguments, context and input"):
            worker.task("other")(lambda ctx: None)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Line:
    ends: list[Point]
    colour: str | None = None


class Image(pydantic.BaseModel):
    url: str
    width: int = 100


async def test_dataclasses_and_models_go_in_and_out() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("turn")
        async def turn(ctx: Context, input: Line) -> Line:
            return Line([Point(point.y, point.x) for point in input.ends], input.colour)

        @worker.task("resize")
        def resize(ctx: Context, input: Image) -> Image:
            return Image(url=input.url, width=input.width // 2)

        line = await queue.submit("turn", Line([Point(1, 2), Point(3)]))
        image = await queue.submit("resize", Image(url="a.png"))
        wrong = await queue.submit("resize", {"width": "wide"})
        unfit = await queue.submit("turn", {"ends": [], "weight": 3})
        await worker.run(drain=True)
        turned = {"ends": [{"x": 2, "y": 1}, {"x": 0, "y": 3}], "colour": None}
        assert (await queue.get(line.id)).output == turned
        assert (await queue.get(image.id)).output == {"url": "a.png", "width": 50}
        for id in (wrong.id, unfit.id):
            failed = await queue.get(id)
            assert (failed.status, failed.attempt) == ("failed", 1)
            assert "the input does not fit the handler" in (failed.error or "")
            assert "leasehold/_" not in (failed.error or "")


async def test_a_model_may_be_defined_where_the_handler_is() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("local")
        async def local(ctx: Context, input: Local) -> int:
            return input.x

        task = await queue.submit("local", Local(5))
        await worker.run(drain=True)
        assert (await queue.get(task.id)).output == 5


OUTPUTS = [object(), float("nan"), "half a character: \ud800", 2**64, b"x", datetime.date(2030, 1, 1)]


@pytest.mark.parametrize("output", OUTPUTS)
async def test_an_output_that_is_not_json_fails_permanently(output: object) -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("odd")
        async def odd(ctx: Context, input: None) -> object:
            return output

        task = await queue.submit("odd")
        await worker.run(drain=True)
        failed = await queue.get(task.id)
        assert (failed.status, failed.attempt) == ("failed", 1)
        assert failed.error is not None and ": the output " in failed.error.splitlines()[0]


class Callable:
    async def __call__(self, ctx: Context, input: Point) -> int:
        return input.x


async def with_more(ctx: Context, input: Point, factor: int) -> int:
    return input.x * factor


async def test_any_callable_can_be_a_handler() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")
        worker.task("object")(Callable())
        worker.task("partial")(functools.partial(with_more, factor=3))

        # One function for two types.
        @worker.task("one")
        @worker.task("two")
        async def both(ctx: Context, input: Point) -> int:
            return input.x

        outputs = {"object": 5, "partial": 15, "one": 5, "two": 5}
        tasks = {each: await queue.submit(each, Point(5), max_attempts=1) for each in outputs}
        await worker.run(drain=True)
        for task_type, task in tasks.items():
            done = await queue.get(task.id)
            assert done.output == outputs[task_type], done.error


async def test_an_invalid_handler_is_rejected() -> None:
    async def yields(ctx: Context, input: None) -> AsyncIterator[int]:
        yield 1

    async with await testing.queue() as queue:
        worker = Worker(queue, "w")
        for function, message in [
            (with_more, "must take two arguments, context and input"),
            (5, "must take two arguments, context and input; 5 does not"),
            (yields, "must return its output"),
        ]:
            with pytest.raises(Invalid, match=message):
                worker.task("x")(function)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=r'must be a str, got function; write @worker.task\("type"\)'):
            worker.task(with_more)  # type: ignore[arg-type]
        for wrong in (0, "3"):
            with pytest.raises(Invalid, match="must be at least 1"):
                worker.task("x", max_attempts=wrong)  # type: ignore[arg-type]


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ODD = {
    "half a character": (ValueError("a\ud800b"), r"ValueError: a\ud800b"),
    "mute": (Mute(), "Mute: <exception str() failed>"),
    "exit": (SystemExit("enough"), "SystemExit: enough"),
    "odd": (Odd("odd"), "Odd: odd"),
    "group": (ExceptionGroup("two", [ValueError("a"), OSError("b")]), "ExceptionGroup: two"),
    "long": (ValueError("x" * 1_000_000), "ValueError: xxx"),
    "of the queue": (Conflict("not now"), "leasehold._errors.Conflict: not now"),
    "generator exit": (GeneratorExit("out"), "GeneratorExit: out"),
}


@pytest.mark.parametrize("how", ODD)
async def test_any_exception_of_a_handler_fails_the_attempt(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("sync")
        def sync(ctx: Context, input: str) -> None:
            raise ODD[input][0]

        @worker.task("async")
        async def not_sync(ctx: Context, input: str) -> None:
            raise ODD[input][0]

        for task_type in ("sync", "async"):
            task = await queue.submit(task_type, how, max_attempts=2)
            assert (await asyncio.wait_for(worker.run(drain=True), 60)).failed == 1
            failed = await queue.get(task.id)
            assert (failed.status, failed.attempt) == ("failed", 2)
            assert failed.error is not None and ODD[how][1] in failed.error.splitlines()[0]
            assert "Traceback (most recent call last)" in failed.error
    # No warnings of Python itself: of a coroutine that was never awaited, or an exception that was never retrieved.
    gc.collect()
    assert {record.name for record in caplog.records if record.levelname != "DEBUG"} == {"leasehold.worker"}


async def test_a_handler_whose_event_loop_ends_has_not_failed(folder: Path) -> None:
    program = """
import asyncio, sys
from leasehold import Worker, connect

async def main():
    queue = await connect(sys.argv[1])
    worker, started = Worker(queue, "w", concurrency=9), asyncio.Barrier(9)

    @worker.task("long")
    async def long(ctx, input):
        await started.wait()
        await asyncio.sleep(600)

    for _ in range(8):
        print((await queue.submit("long")).id)
    running = asyncio.create_task(worker.run())
    await started.wait()

asyncio.run(main())
"""
    command = [sys.executable, "-c", program, str(folder)]
    ids = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert len(ids) == 8
    async with await connect(folder) as queue:
        for id in ids:
            back = await queue.get(id)
            assert (back.status, back.attempt, back.error) == ("pending", 0, None)


@pytest.mark.parametrize("task_type", ["snooze", "retry"])
async def test_a_delay_out_of_range_fails_the_task(task_type: str, caplog: pytest.LogCaptureFixture) -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("snooze")
        async def snooze(ctx: Context, input: None) -> None:
            raise Snooze(1e300)

        @worker.task("retry")
        async def retry(ctx: Context, input: None) -> None:
            raise Retry("busy", after=1e300)

        task = await queue.submit(task_type)
        assert (await worker.run(drain=True)).failed == 1
        failed = await queue.get(task.id)
        assert failed.attempt == 1 and "must be a number of seconds from 0 to" in (failed.error or "")
        assert "got 1e300" in (failed.error or "")
    gc.collect()
    assert {record.name for record in caplog.records} <= {"leasehold.worker"}


async def test_a_delay_may_be_a_timedelta_and_can_be_pickled() -> None:
    assert Snooze(datetime.timedelta(minutes=1)).seconds == 60
    assert Retry("busy", after=datetime.timedelta(minutes=1)).after == 60
    snooze, retry = pickle.loads(pickle.dumps((Snooze(30), Retry("busy", after=5))))
    assert (snooze.seconds, str(snooze), retry.after, str(retry)) == (30, "snoozed for 30 s", 5, "busy")
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a finite number of seconds, at least 0"):
            Snooze(wrong)
        with pytest.raises(ValueError, match="must be a finite number of seconds, at least 0"):
            Retry(after=wrong)


@dataclasses.dataclass
class Square:
    side: int
    area: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.area = self.side**2


async def test_a_dataclass_with_a_computed_field_goes_in_and_out() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("grow")
        async def grow(ctx: Context, input: Square) -> Square:
            return Square(input.side + 1)

        task = await queue.submit("grow", Square(2))
        await worker.run(drain=True)
        assert (await queue.get(task.id)).output == {"side": 3, "area": 9}


@dataclasses.dataclass
class Known:
    x: int
    other: NobodyKnows  # type: ignore[name-defined]  # noqa: F821


async def test_hints_that_only_a_type_checker_can_resolve_are_ignored() -> None:
    async with await testing.queue() as queue:
        worker = Worker(queue, "w")

        @worker.task("x")
        async def handler(ctx: Context, input: Known) -> int:
            return input.x

        task = await queue.submit("x", {"x": 5, "other": None})
        await worker.run(drain=True)
        assert (await queue.get(task.id)).output == 5
