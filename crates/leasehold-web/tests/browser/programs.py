"""Programs under test: real queues, workers and dashboards. Each is stopped by the fixture that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[4]
BINARIES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
LEASEHOLD = Path(os.environ.get("LEASEHOLD_BIN", BINARIES / "leasehold"))
EXERCISER = BINARIES / "store-exerciser"
WEED = ROOT / ".venv/bin/weed"

# Longest wait of the tests; generous, because a machine that is compiling is slow.
TIMEOUT_SECS = 60
LOOK_EVERY_SECS = 0.05


def until(what: str, look: Callable[[], T | None], secs: float = TIMEOUT_SECS) -> T:
    """Polls until `look` returns a true value, and returns it. Other processes do not signal when they are done."""
    end = time.monotonic() + secs
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(LOOK_EVERY_SECS)
    raise AssertionError(f"{what}: not within {secs} seconds")


@dataclass
class Queue:
    """A queue in a store, used through the command line."""

    store: str
    folder: Path
    env: dict[str, str]
    layout: str = "objects"
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, *args: object, given: str | None = None) -> list[Any]:
        """Runs a command to its end and returns the JSON values it printed."""
        command = self.command(*args)
        done = subprocess.run(command, input=given, capture_output=True, text=True, env=self.env, cwd=self.folder, timeout=120, check=False)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Starts a command that runs until it is stopped."""
        with self.log(len(self.started)).open("w") as log:
            process = subprocess.Popen(
                self.command(*args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env={**self.env, **env}, cwd=self.folder
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        """Standard error of the program started as this number."""
        return self.folder / f"log-{number}.txt"

    def command(self, *args: object) -> list[str]:
        return [str(LEASEHOLD), *(str(arg) for arg in args), "--store", self.store, "--json"]

    def stop(self) -> None:
        self.hangs_while.unlink(missing_ok=True)
        for process in self.started:
            process.kill()
        for process in self.started:
            process.communicate()

    def __enter__(self) -> Queue:
        self.run("init", "--layout", self.layout)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- tasks ----

    def submit(self, task_type: str, given: Any = None, *options: object) -> str:
        return self.run("submit", "-t", task_type, "-i", json.dumps(given), *options)[0]["id"]

    def submit_many(self, tasks: Iterable[dict[str, Any]]) -> None:
        self.run("submit-many", "-", given="".join(json.dumps(task) + "\n" for task in tasks))

    def get(self, task: str) -> dict[str, Any]:
        return self.run("get", task)[0]

    def tasks(self) -> list[dict[str, Any]]:
        return self.run("list", "--limit", 1_000_000)

    def rewrite(self, task: str, **fields: Any) -> None:
        """Overwrites fields of a task record in a folder, for states that would take too long to reach in a test."""
        (path,) = Path(self.store).glob(f"tasks/*/{task}.json")
        fresh = self.folder / "record.json"
        fresh.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
        fresh.replace(path)

    def counts(self) -> Counter[str]:
        return Counter(task["status"] for task in self.tasks())

    def wait(self, task: str) -> dict[str, Any]:
        return self.run("wait", task, "--timeout", TIMEOUT_SECS)[0]

    # ---- workers ----

    def program(self, name: str, text: str) -> Path:
        """A shell program for a worker to run."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    @property
    def hangs_while(self) -> Path:
        return self.folder / "hangs"

    def hanging_program(self) -> Path:
        """A program that runs until the test or its worker ends."""
        self.hangs_while.touch()
        return self.program("hangs.sh", f"while test -e {self.hangs_while}; do sleep 0.2; done")

    def worker(self, name: str, programs: dict[str, Path], *options: object, **env: str) -> subprocess.Popen[str]:
        execs = [word for task_type, program in programs.items() for word in ("--exec", f"{task_type}={program}")]
        return self.start("worker", "--id", name, *execs, *options, **env)

    def work(self, programs: dict[str, Path], *options: object) -> None:
        """Runs a worker until no work is left."""
        worker = self.worker("worker-1", programs, "--drain", *options)
        assert worker.wait(TIMEOUT_SECS) == 0


def killed(process: subprocess.Popen[str]) -> None:
    """Kills a process like a power cut: it releases nothing."""
    process.send_signal(signal.SIGKILL)
    process.wait()


@dataclass
class Dashboard:
    """A running dashboard, accessed over HTTP."""

    url: str
    token: str | None = None

    def ask(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None, token: str | None = None
    ) -> tuple[int, Any]:
        """Sends a request and returns status and body; JSON is decoded."""
        token = token or self.token
        sent = {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        request = urllib.request.Request(self.url.rstrip("/") + path, method=method, headers=sent, data=body)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, kind, text = answer.status, answer.headers.get_content_type(), answer.read().decode()
        except urllib.error.HTTPError as refused:
            status, kind, text = refused.code, refused.headers.get_content_type(), refused.read().decode()
        return status, json.loads(text) if kind == "application/json" else text

    def get(self, path: str) -> Any:
        status, body = self.ask(path)
        assert status == 200, (path, status, body)
        return body

    def overview(self) -> dict[str, Any]:
        return self.get("/api/overview")

    def has_read(self, tasks: int) -> dict[str, Any]:
        """Waits until the overview counts this many tasks, and returns it."""
        known = ("pending", "running", "completed", "failed", "cancelled", "expired")

        def look() -> dict[str, Any] | None:
            overview = self.overview()
            return overview if sum(overview["counts"][status] for status in known) == tasks else None

        return until(f"the dashboard knows {tasks} tasks", look)


def dashboard(queue: Queue, *options: object, token: str | None = None, **env: str) -> Dashboard:
    """Starts a dashboard on a free local port."""
    given = ["--token", token] if token else []
    process = queue.start("dashboard", "--port", 0, *given, *options, **env)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the dashboard did not start: " + queue.log(len(queue.started) - 1).read_text()
    return Dashboard(json.loads(line)["url"], token)
