"""Applications: submitting from sync and async code, arguments, middleware, lifespans."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal, Optional

import pydantic
import pytest
from conftest import command_line

import leasehold
from leasehold import Context, Invalid, Leasehold, NotCompleted, Permanent, RetryPolicy, Status, Submitted, testing


@pytest.fixture
def app(folder: Path) -> Iterator[Leasehold]:
    """An application with a queue in a folder."""
    with Leasehold(folder, durability="os") as app:
        yield app


def test_a_task_is_submitted_in_sync_code_and_its_result_is_typed(app: Leasehold) -> None:
    @app.task
    def double(image: Image, times: int = 1) -> Image:
        return Image(image.url, image.width * 2**times)

    @app.task(max_attempts=2, timeout=60, priority=8, retry=RetryPolicy(max_secs=7), name="other")
    async def not_sync(ctx: Context, to: str, *, body: str | None = None) -> tuple[str, int]:
        return f"{to} {body}", ctx.attempt

    image, other = double.submit(Image("a.png", 5), times=2), not_sync.submit("Ada", body="Hello")
    assert image.is_new and isinstance(image, Submitted)
    counts = app.work("worker-1", drain=True, concurrency=2)
    assert counts.completed == 2
    assert image.result(timeout=60) == Image("a.png", 20)
    assert other.result() == ("Ada Hello", 1)
    task = other.wait()
    assert (task.task_type, task.input) == ("other", {"to": "Ada", "body": "Hello"})
    assert (task.max_attempts, task.timeout_secs, task.priority, task.retry_policy.max_secs) == (2, 60, 8, 7)
    assert app.queue.get(image.id).input == {"image": {"url": "a.png", "width": 5}, "times": 2}
    assert repr(double) == "<leasehold.TaskFunction double>" and list(app.tasks) == ["double", "other"]


async def test_a_task_is_submitted_in_async_code_on_any_event_loop(app: Leasehold) -> None:
    @app.task
    async def parent(number: int) -> str:
        # On the event loop of the queue.
        return (await child.submit_async(number)).id

    @app.task
    def child(number: int) -> int:
        # In a thread.
        return leaf.submit(number).is_new + number

    @app.task
    def leaf(number: int) -> int:
        return number

    submission = await parent.submit_async(7)
    elsewhere = await asyncio.to_thread(lambda: asyncio.run(parent.submit_async(8)))
    many = await app.submit_many_async(child.new_task(number) for number in range(3))
    assert all(isinstance(each, Submitted) and each.is_new for each in many)
    await asyncio.to_thread(app.work, drain=True)
    for each in (submission, elsewhere):
        child_id = await each.result_async(timeout=60)
        assert (await asyncio.to_thread(app.queue.get, child_id)).task_type == "child"


async def test_a_blocking_call_in_async_code_is_refused_with_the_line_to_write(app: Leasehold) -> None:
    @app.task
    def send(to: str) -> None: ...

    for call, advice in [
        (lambda: send.submit("Ada"), r"write `await send.submit_async\(…\)`"),
        (lambda: app.work(drain=True), r"write `await asyncio.to_thread\(app.work\)`"),
        (lambda: app.submit_many([]), r"write `await app.submit_many_async\(…\)`"),
    ]:
        with pytest.raises(Invalid, match=f"would block the running event loop.*{advice}"):
            call()
    submission = await send.submit_async("Ada")
    with pytest.raises(Invalid, match="….result_async"):
        submission.result()


def test_nothing_is_opened_before_the_first_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    app = Leasehold(folder)

    @app.task
    def send(to: str) -> str:
        return f"sent to {to}"

    assert send("Ada") == "sent to Ada"
    assert not folder.exists() and threading.active_count() == threads
    with app:
        first = send.submit("Ada")
    # It opens again after it was closed.
    with app:
        assert first.id in [task.id for task in app.queue.list()]
    # A folder is that of the import.
    relative = Leasehold("relative")
    monkeypatch.chdir("/")
    with relative:
        assert "work/relative" in repr(relative.queue)
    with pytest.raises(Invalid, match="either store or bucket"):
        Leasehold("data", bucket="b")
    with pytest.raises(TypeError, match="unexpected keyword argument 'buckets'"):
        Leasehold(buckets="b")  # type: ignore[call-arg]


def test_the_queue_of_the_settings_is_used_without_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_STORE", str(folder))
    with Leasehold() as app:
        assert str(folder) in repr(app.queue)


@dataclasses.dataclass
class Image:
    url: str
    width: int = 64


class Model(pydantic.BaseModel):
    when: datetime.datetime


def takes(
    number: int = 0,
    ratio: float = 0.0,
    text: str = "",
    flag: bool = False,
    image: Image | None = None,
    images: list[Image] | None = None,
    model: Optional[Model] = None,  # noqa: UP007
    pair: tuple[int, str] | None = None,
    by_name: dict[str, int] | None = None,
    mode: Literal["fast", "slow"] = "fast",
    either: int | str = 0,
    anything: Any = None,
    later: Later | None = None,
) -> None: ...


@dataclasses.dataclass
class Later:
    x: int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"numbr": 1}, "got an unexpected keyword argument 'numbr'"),
        ({"number": "1"}, "`number` must be int, got str '1'"),
        ({"number": True}, "`number` must be int, got bool True"),
        ({"number": 1.5}, "`number` must be int, got float 1.5"),
        ({"number": 2**64}, "the argument `number` has the number 18446744073709551616, which does not fit"),
        ({"ratio": "x" * 100}, "`ratio` must be float, got str$"),
        ({"text": None}, "`text` must be str, got NoneType None"),
        ({"text": datetime.date(2030, 1, 1)}, "argument `text` cannot be written as JSON: .*pass its isoformat"),
        ({"flag": 1}, "`flag` must be bool, got int 1"),
        ({"image": {"url": 5}}, "`image`.url must be str, got int 5"),
        ({"image": {}}, "missing 1 required positional argument: 'url'"),
        ({"images": [Image("a"), "b"]}, r"`images`\[1\] must be an object for Image, got str 'b'"),
        ({"images": Image("a")}, "`images` must be a list, got dict"),
        ({"model": {"when": "soon"}}, "validation error for Model"),
        ({"pair": (1, 2)}, r"`pair`\[1\] must be str, got int 2"),
        ({"pair": (1, "a", 2)}, "`pair` must have 2 items, got 3"),
        ({"by_name": {"a": "b"}}, r"`by_name`\['a'\] must be int, got str 'b'"),
        ({"mode": "medium"}, "`mode` must be one of 'fast', 'slow', got str 'medium'"),
        ({"either": 1.5}, "`either` must be int or str, got float 1.5"),
        ({"later": {"x": "y"}}, "`later`.x must be int, got str 'y'"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(
    folder: Path, arguments: dict[str, Any], message: str
) -> None:
    app = Leasehold(folder)
    with pytest.raises(Invalid, match=message) as caught:
        app.task(takes).submit(**arguments)
    assert "takes()" in str(caught.value) or "argument `" in str(caught.value)
    assert not folder.exists()


def test_arguments_arrive_as_they_were_annotated() -> None:
    app, got = Leasehold("memory://"), []

    @app.task(name="takes")
    def handler(
        image: Image | None,
        images: list[Image],
        model: Model,
        pair: tuple[int, str],
        ratio: float,
        either: int | str,
        /,
        anything: Any,
        *,
        later: Later,
        default: str = "default",
    ) -> list[Image]:
        got.append((image, images, model, pair, ratio, either, anything, later, default))
        return images

    when = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    call = (None, [Image("a"), Image("b", 5)], Model(when=when), (1, "x"), 2, "y", {"any": [1]})
    with testing.connected(app) as queue:
        submission = handler.submit(*call, later=Later(5))
        app.work(drain=True)
        assert got == [(*call, Later(5), "default")]
        assert isinstance(got[0][4], float)
        assert submission.result() == [Image("a"), Image("b", 5)]
        # From the command line, or from Rust.
        wrong = [queue.submit("takes", input, max_attempts=4) for input in (None, [], {"image": None, "size": 1})]
        app.work(drain=True)
        errors = [(queue.get(each.id).attempt, queue.get(each.id).error or "") for each in wrong]
        assert [attempt for attempt, _ in errors] == [1, 1, 1]
        assert "the input does not fit handler(): argument `image` is missing" in errors[0][1]
        assert "it must be an object with the arguments by name, got list" in errors[1][1]
        assert "there is no parameter `size`" in errors[2][1]


def test_a_task_without_arguments_takes_no_input(folder: Path) -> None:
    with Leasehold(folder) as app:

        @app.task
        def tick() -> str:
            return "tock"

        command_line("submit", "--store", folder, "-t", "tick")
        tick.submit()
        assert app.work(drain=True).completed == 2


def test_the_context_is_the_first_parameter_with_this_annotation() -> None:
    app = Leasehold("memory://")

    @app.task
    def with_context(ctx: Context, x: int) -> str:
        ctx.progress({"percent": x})
        (ctx.directory / "x.txt").write_text("x")
        ctx.publish("x", ctx.directory / "x.txt")
        return f"{ctx.attempt} {ctx.task.task_type} {ctx.cancelled} {ctx.epoch} {ctx.artifacts} {x}"

    @app.task
    def by_text(c: "leasehold.Context", x: int) -> int:  # noqa: UP037
        return c.attempt + x

    @app.task
    def by_name_only(ctx, x):  # type: ignore[no-untyped-def]
        return [ctx, x]

    assert with_context(5) == "1 with_context False 1 {} 5"
    assert with_context.function(testing.context(attempt=3, cancelled=True), 5).startswith("3 test True")
    assert by_text(1) == 2
    assert by_name_only.arguments.encode(("a", 1), {}) == {"ctx": "a", "x": 1}


def test_a_wrong_definition_is_refused_where_it_is() -> None:
    app = Leasehold("memory://")

    @app.task
    def once() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    def second(x: int, ctx: Context) -> None: ...

    def star(*args: int) -> None: ...

    def more(**kwargs: int) -> None: ...

    def plain() -> None: ...

    for define, message in [
        (lambda: app.task(once.function), "two tasks with the name `once`"),
        (lambda: app.task(generator), "must return its output; generator.. is a generator"),
        (lambda: app.task(second), "the context must be the first parameter of second"),
        (lambda: app.task(star), r"star\(\) takes `\*args: int`|star\(\) takes `\*args: 'int'`"),
        (lambda: app.task(more), r"more\(\) takes `\*\*kwargs"),
        (lambda: app.task("send"), "a task must be a function, got 'send'"),  # type: ignore[call-overload]
        (lambda: app.task(priority=10), "priority must be 0 to 9, got 10"),
        (lambda: app.task(max_attempts=0), "max_attempts must be at least 1, got 0"),
        (lambda: app.task(max_attempts=2)(plain).options(max_attempts=3), "max_attempts of plain is at most 2"),
        (lambda: app.middleware(plain), "middleware must be a generator function"),  # type: ignore[type-var]
        (lambda: app.lifespan(plain), "lifespan must be a generator function"),  # type: ignore[type-var]
    ]:
        with pytest.raises(Invalid, match=message):
            define()
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_attempt'; did you mean 'max_attempts'"):
        app.task(max_attempt=5)  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="the application has no tasks"):
        Leasehold("memory://").work()


def test_options_are_for_some_calls_only() -> None:
    app = Leasehold("memory://")

    @app.task(tags={"kind": "mail"}, max_attempts=5)
    def send(to: str, delay: int = 0) -> None: ...

    with testing.connected(app) as queue:
        urgent = send.options(priority=9, key="ada", delay=datetime.timedelta(minutes=1))
        first, again = urgent.submit("Ada", delay=3), urgent.submit("Ada", delay=3)
        assert (first.is_new, again.is_new, again.existing, first.id) == (True, False, Status.PENDING, again.id)
        task, other = queue.get(first.id), queue.get(send.submit("Bob").id)
        assert (task.priority, task.tags, task.max_attempts, task.input["delay"]) == (9, {"kind": "mail"}, 5, 3)
        assert (other.priority, other.tags, other.max_attempts) == (5, {"kind": "mail"}, 5)


def test_a_task_that_failed_has_no_result() -> None:
    app = Leasehold("memory://")

    @app.task(max_attempts=2)
    def fails() -> int:
        raise ValueError("bad luck")

    with testing.connected(app) as queue:
        submission, other = fails.submit(), queue.submit("fails", {}, max_attempts=9)
        app.work(drain=True)
        with pytest.raises(NotCompleted, match="is failed: ValueError: bad luck") as caught:
            submission.result()
        assert caught.value.task.attempt == 2 and isinstance(caught.value, leasehold.Conflict)
        # The definition limits tasks that were submitted otherwise.
        assert queue.get(other.id).attempt == 2


def test_a_middleware_that_fails_before_its_handler_fails_the_attempt_even_if_another_one_swallows_that() -> None:
    app = Leasehold("memory://")

    @app.middleware
    def outer(ctx: Context) -> Iterator[None]:
        with contextlib.suppress(Exception):
            yield

    @app.middleware
    def inner(ctx: Context) -> Iterator[None]:
        raise Permanent("not today")
        yield

    @app.task(max_attempts=5, name="task")
    def run() -> str:
        return "ran"

    with testing.connected(app) as queue:
        submission = run.submit()
        app.work(drain=True)
        task = queue.get(submission.id)
        assert (task.status, task.attempt) == ("failed", 1) and "not today" in str(task.error)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_middleware_surrounds_handlers(how: str, caplog: pytest.LogCaptureFixture) -> None:
    app = Leasehold("memory://")
    seen: list[str] = []

    @app.middleware
    def outer(ctx: Context) -> Iterator[None]:
        seen.append(f"outer {ctx.attempt}")
        try:
            yield
        except ValueError:
            seen.append("swallowed")
        seen.append("after")

    @app.middleware
    def inner(ctx: Context) -> Iterator[None]:
        seen.append("inner")
        try:
            yield
        except KeyError as error:
            raise Permanent("no such key") from error

    def fail(kind: str) -> None:
        if kind != "fine":
            raise {"value": ValueError, "key": KeyError}[kind](kind)

    @app.task(max_attempts=1, name="task")
    def run(kind: str) -> str:
        fail(kind)
        return kind

    @app.task(max_attempts=1, name="async")
    async def run_async(kind: str) -> str:
        fail(kind)
        return kind

    task = run_async if how == "async" else run
    with testing.connected(app):
        fine = task.submit("fine")
        app.work(drain=True)
        assert fine.result() == "fine" and seen == ["outer 1", "inner", "after"]
        swallowed = task.submit("value")
        app.work(drain=True)
        assert seen[3:] == ["outer 1", "inner", "swallowed", "after"]
        with pytest.raises(NotCompleted, match="ValueError: value"):
            swallowed.result()
        replaced = task.submit("key")
        app.work(drain=True)
        assert "Permanent: no such key" in (replaced.wait().error or "")
    first, second = (logging.Formatter().format(each) for each in caplog.records if each.levelname == "WARNING")
    assert "in fail" in first and "leasehold/_" not in first + second


def test_lifespans_surround_the_worker(folder: Path) -> None:
    seen: list[str] = []
    with Leasehold(folder) as app:

        @app.lifespan
        def first() -> Iterator[None]:
            seen.append("first")
            yield
            seen.append("first ends")

        @app.lifespan
        async def second() -> AsyncIterator[None]:
            seen.append("second")
            loops.append(asyncio.get_running_loop())
            yield
            seen.append("second ends")

        loops: list[object] = []

        @app.task
        async def run() -> None:
            seen.append("run")
            loops.append(asyncio.get_running_loop())

        run.submit()
        app.work(drain=True)
        assert seen == ["first", "second", "run", "second ends", "first ends"]
        assert loops[0] is loops[1]

        @app.lifespan
        def broken() -> Iterator[None]:
            raise OSError("no database")
            yield

        seen.clear()
        with pytest.raises(OSError, match="no database"):
            app.work(drain=True)
        assert seen == ["first", "second", "second ends", "first ends"]


PREFORK = """
import os, sys
from leasehold import Leasehold

app = Leasehold(sys.argv[1])

@app.task
def send(to: str) -> None: ...

send.submit("parent")
child = os.fork()
if child == 0:
    send.submit("child")
    app.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
send.submit("parent again")
print(sorted(task.input["to"] for task in app.queue.list()))
"""

EXITS = """
import sys
from leasehold import Leasehold

app = Leasehold(sys.argv[1])

@app.task
async def send(to: str) -> None: ...

send.submit("Ada")
if "work" in sys.argv:
    app.work(drain=True)
print([task.status for task in app.queue.list()])
"""


def run(program: str, *args: object) -> str:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_process_has_its_own_connection(folder: Path) -> None:
    assert run(PREFORK, folder) == "['child', 'parent', 'parent again']\n"


@pytest.mark.parametrize("layout", ["objects", "journal"])
def test_a_program_closes_its_connection_at_exit(folder: Path, layout: str) -> None:
    command_line("init", "--store", folder, "--layout", layout)
    run(EXITS, folder)
    run(EXITS, folder, "work")
    if layout == "journal":
        # A broker that is not closed keeps its lease until it expires.
        status = subprocess.run(
            [sys.executable, "-m", "leasehold", "broker", "status", "--store", str(folder)], capture_output=True, text=True
        )
        assert status.returncode == 75, status.stdout


def test_an_application_is_connected_to_memory_in_tests(folder: Path) -> None:
    app = Leasehold(folder)

    @app.task
    def remind(to: str) -> str:
        return f"reminded {to}"

    def sign_up(name: str) -> str:
        return remind.options(delay=3_600).submit(name).id

    for _ in range(2):
        with testing.connected(app) as queue:
            id = sign_up("Ada")
            assert app.work(drain=True).started == 0
            queue.advance(3_600)
            assert app.work(drain=True).completed == 1
            assert queue.get(id).output == "reminded Ada"
            with pytest.raises(Invalid, match="already connected"), testing.connected(app):
                pass
    assert not folder.exists()


def test_a_first_call_from_many_threads_opens_one_queue(app: Leasehold) -> None:
    @app.task
    def send(number: int) -> None: ...

    queues, barrier = set(), threading.Barrier(8)

    def submit(number: int) -> None:
        barrier.wait()
        send.submit(number)
        queues.add(id(app.queue))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(queues) == 1 and len(list(app.queue.list())) == 8


def test_a_cancelled_wait_ends(app: Leasehold) -> None:
    @app.task
    def send() -> None: ...

    async def wait() -> None:
        submission = await send.submit_async()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(submission.wait_async(), 0.1)
        with pytest.raises(leasehold.NotYet):
            await submission.result_async(timeout=0.1)

    asyncio.run(wait())

