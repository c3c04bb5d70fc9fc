#!/usr/bin/env python3
"""Measures many worker processes on one queue in the journal layout: idle, and with tasks.

Usage: broker.py [--store STORE] [--workers 50] [--idle-secs 60] [--tasks 20000] [--concurrency 4] PROGRAM

PROGRAM is a release build of `leasehold`. STORE must not have a queue yet; by default it is a new folder. The credentials of a
bucket come from the environment. One worker is the broker, the others are connected to it. Prints one JSON line per phase:
processor time of all workers with their programs, and requests to the store by all of them, from their start to their end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Time for all workers to start and connect.
SETTLE_SECS = 10


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process and of its children that have ended."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_SECOND


class Workers:
    """Worker processes, and their processor time since they have settled."""

    def __init__(self, args: argparse.Namespace) -> None:
        command = [args.program, "worker", "--store", args.store, "--exec", "noop=true", "--json"]
        command += ["--concurrency", str(args.concurrency)]
        self.processes = [subprocess.Popen([*command, "--id", f"w{number}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for number in range(args.workers)]
        time.sleep(SETTLE_SECS)
        self.began = time.monotonic()
        self.before = self.cpu()

    def cpu(self) -> list[float]:
        """Returns the processor time of each worker."""
        return [cpu_seconds(process.pid) for process in self.processes]

    def end(self, phase: str, tasks: int) -> dict:
        """Stops the workers, and returns what they have used."""
        used = [after - before for before, after in zip(self.before, self.cpu(), strict=True)]
        seconds = time.monotonic() - self.began
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        reports = [json.loads(process.communicate()[0]) for process in self.processes]
        requests: dict[str, int] = {}
        for line in (line for report in reports for line in report["requests"]):
            requests[line["verb"]] = requests.get(line["verb"], 0) + line["requests"]
        completed = sum(report["counts"]["completed"] for report in reports)
        if completed != tasks:
            sys.exit(f"{completed} of {tasks} tasks completed")
        rest = used[:]
        rest.remove(max(rest))
        return {
            "phase": phase,
            "workers": len(self.processes),
            "seconds": round(seconds, 1),
            "cpu_of_busiest": round(max(used), 2),
            "cpu_of_others": round(sum(rest), 2),
            "requests": requests,
        } | ({"tasks": tasks, "tasks_per_second": round(tasks / seconds)} if tasks else {})


def main() -> None:
    """Runs both phases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--store")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--idle-secs", type=float, default=60)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.store = args.store or folder
        subprocess.run([args.program, "init", "--layout", "journal", "--store", args.store], check=True, stdout=subprocess.DEVNULL)
        workers = Workers(args)
        time.sleep(args.idle_secs)
        print(json.dumps(workers.end("idle", 0)), flush=True)
        workers = Workers(args)
        lines = (json.dumps({"task_type": "noop"}) + "\n") * args.tasks
        subprocess.run([args.program, "submit-many", "-", "--store", args.store], input=lines.encode(), check=True, stdout=subprocess.DEVNULL)
        while any(left(args).values()):
            time.sleep(0.2)
        print(json.dumps(workers.end("tasks", args.tasks)), flush=True)


def left(args: argparse.Namespace) -> dict:
    """Returns the numbers of tasks that are not final."""
    shown = subprocess.run([args.program, "stats", "--json", "--store", args.store], check=True, capture_output=True)
    stats = json.loads(shown.stdout)
    return {status: stats[status] for status in ["due", "scheduled", "running"]}


if __name__ == "__main__":
    main()
