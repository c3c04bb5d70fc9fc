"""Memory growth of a process that submits and runs tasks, in bytes per task.

    python memory.py [--windows 5] [--tasks 50000] [--sync] [--store FOLDER]

Each window submits tasks and runs all of them. It prints the memory of the process (RSS), the bytes allocated by malloc
(Rust), and the blocks allocated by Python, each as the growth since the previous window. A leak grows in every window; a
bounded cache, and memory that malloc keeps, do not.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import sys
import tempfile

from leasehold import Context, NewTask, Worker, connect

BATCH = 1_000


class Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def measured() -> tuple[int, int, int]:
    """Resident bytes, bytes allocated by malloc, blocks allocated by Python."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    info = mallinfo()
    return resident, info.uordblks + info.hblkhd, sys.getallocatedblocks()


async def main(store: str, windows: int, tasks: int, sync: bool) -> None:
    # The broker of a journal keeps final tasks for some minutes, so that memory would show these.
    async with await connect(store, layout="objects", durability="os") as queue:
        worker = Worker(queue, "worker-1", concurrency=32)

        async def nothing(ctx: Context, input: int) -> None: ...

        def nothing_sync(ctx: Context, input: int) -> None: ...

        worker.task("nothing")(nothing_sync if sync else nothing)
        before = measured()
        print(f"{'tasks':>9} {'RSS MiB':>8} {'RSS B/task':>11} {'malloc B/task':>14} {'blocks/task':>12}")
        for window in range(1, windows + 1):
            for start in range(0, tasks, BATCH):
                await queue.submit_many(NewTask(task_type="nothing", input=start + each) for each in range(BATCH))
            assert (await worker.run(drain=True)).completed == tasks
            after = measured()
            resident, handed_out, blocks = ((new - old) / tasks for new, old in zip(after, before))
            shown = f"{resident:>11.1f} {handed_out:>14.1f} {blocks:>12.3f}"
            print(f"{window * tasks:>9} {after[0] / 2**20:>8.1f} {shown}", flush=True)
            before = after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--store")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(args.store or folder, args.windows, args.tasks, args.sync))
