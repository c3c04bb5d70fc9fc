"""An application as users write it. Type checkers accept all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, assert_type

from leasehold import Context, Leasehold, RetryPolicy, Submission, sync

app = Leasehold("./leasehold-data", durability="os")


@dataclass
class Image:
    url: str
    width: int = 64


@app.task
def plain(to: str, body: str = "") -> int:
    return len(to + body)


@app.task(max_attempts=5, timeout=60, priority=9, retry=RetryPolicy(max_secs=60), name="shop.resize")
async def resize(ctx: Context, image: Image, *, quality: float | None = None) -> Image:
    ctx.raise_if_cancelled()
    return Image(image.url, image.width // 2)


@app.task()
def only_context(ctx: Context) -> None: ...


@app.task
def anything(payload: Any, factor: int = 1) -> None: ...


@app.task(executor="process", max_attempts=2)
def in_process(numbers: list[int]) -> int:
    return sum(numbers)


@app.middleware
def around(ctx: Context) -> Iterator[None]:
    yield


@app.lifespan
async def database() -> AsyncIterator[None]:
    yield


@app.lifespan
def cache() -> Iterator[None]:
    yield


def submit() -> None:
    assert_type(plain.submit("a", body="b"), Submission[int])
    assert_type(plain.submit("a").result(timeout=1), int)
    assert_type(plain("a"), int)
    assert_type(resize.options(delay=5, key="x").submit(Image("a.png"), quality=0.5).result(), Image)
    only_context.submit()
    in_process.submit([1, 2])
    anything.submit(object(), 2)
    app.submit_many(plain.new_task(to) for to in ("a", "b"))
    assert_type(app.queue, sync.Queue)


async def submit_async() -> None:
    submission = await resize.submit_async(Image("a.png"))
    assert_type(submission, Submission[Image])
    assert_type(await submission.result_async(), Image)
    assert_type(await resize(Image("a.png")), Image)
