"""Mistakes that type checkers find: each line with `# wrong`, and no other."""

from __future__ import annotations

from application import Image, app, only_context, plain, resize

from leasehold import Context

plain.submit()  # wrong: an argument is missing
plain.submit(5)  # wrong: not a str
plain.submit("a", "b", "c")  # wrong: too many
plain.submit("a", subject="b")  # wrong: no such argument
plain.new_task(5)  # wrong: not a str
plain.options(delay="soon").submit("a")  # wrong: not a duration
plain.options(prority=5)  # wrong: no such option
only_context.submit(1)  # wrong: the context is no argument
resize.submit("a.png")  # wrong: not an Image
name: str = plain.submit("a").result()  # wrong: an int


@app.task(max_attempt=5)  # wrong: no such option
def misspelled() -> None: ...


@app.task(executor="thread")  # wrong: no such executor
def no_such_executor() -> None: ...


@app.middleware  # wrong: no generator
def not_a_generator(ctx: Context) -> None: ...


async def wrong_async() -> None:
    await resize.submit_async(Image("a.png"), 0.5)  # wrong: only by name
    size: int = await resize(Image("a.png"))  # wrong: an Image
