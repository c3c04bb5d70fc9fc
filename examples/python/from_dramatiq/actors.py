"""Coming from dramatiq: `python -m leasehold worker actors` in place of `dramatiq actors`. Actors may be async."""

import time
from collections.abc import Iterator

from leasehold import Context, Leasehold, Permanent

app = Leasehold("./leasehold-data")


@app.middleware
def timing(ctx: Context) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"{ctx.task.task_type} took {time.perf_counter() - started:.3f} s")


@app.task(max_attempts=4, priority=8)
async def charge(ctx: Context, customer: str, cents: int) -> str:
    if cents <= 0:
        raise Permanent(f"{cents} cents cannot be charged")
    # The payment service gets the same key from every attempt.
    return f"charged {cents} cents to {customer} once, as {ctx.task_id}"
