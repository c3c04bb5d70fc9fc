"""A worker that resizes images: dataclasses as input and output, progress, a fencing token, retries.

    python examples/python/resize.py ./leasehold-data
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from leasehold import Context, Counts, NewTask, Permanent, Queue, Retry, Status, Submitted, Task, Worker, connect


@dataclass
class Image:
    url: str
    width: int


@dataclass
class Resized:
    url: str
    written_with: int
    """Epoch of the run that wrote it: an image store would reject a smaller one."""


def make_worker(queue: Queue) -> Worker:
    worker = Worker(queue, "resizer", concurrency=4)

    @worker.task("resize", max_attempts=3)
    async def resize(ctx: Context, image: Image) -> Resized:
        if image.width <= 0:
            raise Permanent(f"an image cannot be {image.width} wide")
        if ctx.attempt == 1 and image.url.endswith("b.png"):
            raise Retry("the image is not there yet", after=0.1)
        for done in range(0, 100, 50):
            ctx.progress({"percent": done})
            await asyncio.sleep(0)
        return Resized(image.url.replace(".png", f"-{image.width}.png"), ctx.epoch)

    @worker.task("count")
    def count(ctx: Context, words: str) -> int:
        # Not async, so it may block: it runs in a thread.
        return len(words.split())

    return worker


async def main(store: str) -> list[Task]:
    async with await connect(store, durability="os") as queue:
        tasks = [NewTask(task_type="resize", input=Image(url, 64)) for url in ("a.png", "b.png")]
        tasks.append(NewTask(task_type="resize", input=Image("c.png", 0), tags={"odd": "yes"}))
        tasks.append(NewTask(task_type="count", input="one two three"))
        submitted = await queue.submit_many(tasks)
        counts: Counts = await make_worker(queue).run(drain=True)
        print(f"{counts.completed} completed, {counts.failed} failed")
        return [await queue.get(each.id) for each in submitted if isinstance(each, Submitted)]


if __name__ == "__main__":
    for task in asyncio.run(main(sys.argv[1])):
        shown = task.output if task.status is Status.COMPLETED else (task.error or "").splitlines()[0]
        print(task.task_type, task.input, "->", task.status, shown)
