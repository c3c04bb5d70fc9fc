"""`python -m leasehold worker`: applications in modules, signals, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold import Context, Leasehold, sync

TASKS = """
import time
from pathlib import Path
from leasehold import Context, Leasehold

app = Leasehold({store!r}, durability="os")
VERSION = 1

@app.task
def version() -> int:
    return VERSION

@app.task
def until(path: str) -> str:
    print("started", flush=True)
    while not Path(path).exists():
        time.sleep(0.01)
    return "finished"

@app.task
async def forever(ctx: Context) -> None:
    import asyncio
    print("started", flush=True)
    await asyncio.sleep(600)

@app.task(max_attempts=1)
def fails() -> None:
    raise ValueError("bad luck")
"""


@pytest.fixture
def project(folder: Path) -> Path:
    """The working directory, with the module `tasks` of an application on the queue `folder`."""
    path = Path.cwd() / "tasks.py"
    path.write_text(TASKS.format(store=str(folder)))
    return path


@pytest.fixture
def queue(folder: Path) -> Iterator[sync.Queue]:
    with sync.connect(folder) as queue:
        yield queue


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "leasehold", "worker", *args]


def run(*args: str, code: int = 0) -> str:
    done = subprocess.run(command(*args), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


@contextmanager
def started(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str], text: str) -> str:
    """Reads standard error up to a line with this text."""
    assert process.stderr is not None
    read = []
    for line in process.stderr:
        read.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not in {''.join(read)!r}")


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("args", [["tasks"], ["tasks:app"], ["--app", "tasks:app"], ["--app=tasks"], ["--concurrency", "1", "--app=tasks"]])
def test_the_application_of_a_module_is_run(project: Path, queue: sync.Queue, args: list[str]) -> None:
    task = queue.submit("version", {})
    err = run(*args, "--drain")
    assert queue.get(task.id).output == 1
    assert "worker starts on" in err and "tasks: version, until, forever, fails" in err and "1 completed, 0 failed" in err


def test_tasks_may_be_in_other_modules(folder: Path, queue: sync.Queue) -> None:
    shop = Path.cwd() / "shop"
    shop.mkdir()
    (shop / "main.py").write_text(f"from leasehold import Leasehold\nqueue = Leasehold({str(folder)!r})\n")
    (shop / "mail.py").write_text("from shop.main import queue\n\n@queue.task\ndef send() -> str:\n    return 'sent'\n")
    task = queue.submit("send", {})
    assert "has no tasks" in run("shop.main", "--drain", code=64)
    run("shop.main", "shop.mail", "--drain")
    assert queue.get(task.id).output == "sent"
    assert run("shop.mail", "--drain")


def test_a_wrong_name_is_refused_with_a_reason(project: Path) -> None:
    for name, message in [
        ("task", "error: there is no module `task` in "),
        ("tasks.more", "error: there is no module `tasks.more` in "),
        ("tasks:application", "error: `tasks` has no application `application`, a leasehold.Leasehold; it has app"),
        ("json", "error: `json` has no application `app`, a leasehold.Leasehold; it has none"),
        ("./tasks.py", "error: "),
    ]:
        err = run(name, "--drain", code=64)
        assert err.startswith(message) and "Traceback" not in err, err
    assert "name the module" in run("--app", "", code=2)
    # An error of the application keeps its traceback.
    project.write_text("import nonsense\n")
    assert "Traceback" in run("tasks", code=1)
    project.write_text("import json\njson.loads(5)\n")
    assert "the JSON object must be str" in run("tasks", code=1)


def test_the_native_command_line_is_used_without_an_application(folder: Path, queue: sync.Queue) -> None:
    task = queue.submit("greet", "Ada")
    run("--exec", "greet=cat", "--store", str(folder), "--drain")
    assert queue.get(task.id).output == "Ada"


def test_a_failure_is_logged_as_a_warning_with_the_traceback_of_the_handler(project: Path, queue: sync.Queue) -> None:
    task = queue.submit("fails", {})
    err = run("tasks", "--drain")
    assert f"WARNING leasehold.worker: attempt failed task={task.id} task_type=fails attempt=1\nTraceback" in err
    assert err.count("Traceback") == 1 and "leasehold/_" not in err and "\x1b" not in err
    assert 'tasks.py", line ' in err and "ValueError: bad luck" in err
    assert "0 completed, 1 failed" in err
    assert "worker starts" not in run("tasks", "--drain", "--log-level", "warning")


@pytest.mark.parametrize("reload", [False, True], ids=["plain", "reload"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_tasks_finish(project: Path, queue: sync.Queue, number: signal.Signals, reload: bool) -> None:
    done = Path.cwd() / "done"
    task = queue.submit("until", {"path": str(done)})
    with started("tasks", *(["--reload"] if reload else [])) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(number)
        done.touch()
        assert process.wait(60) == 0
    assert queue.get(task.id).output == "finished"


@pytest.mark.parametrize("reload", [False, True], ids=["plain", "reload"])
def test_a_second_signal_releases_tasks(project: Path, queue: sync.Queue, reload: bool) -> None:
    task = queue.submit("forever", {})
    with started("tasks", *(["--reload"] if reload else [])) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        # Two signals of the same kind could be merged into one.
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    back = queue.get(task.id)
    assert (back.status, back.attempt) == ("pending", 0)


def test_a_changed_file_restarts_the_worker(project: Path, queue: sync.Queue) -> None:
    def result() -> object:
        return queue.wait(queue.submit("version", {}).id, timeout=60).output

    def write(text: str) -> None:
        new = project.with_suffix(".new")
        new.write_text(text)
        new.replace(project)

    text = project.read_text()
    (Path.cwd() / ".venv").mkdir()
    with started("tasks", "--reload") as process:
        assert result() == 1
        (Path.cwd() / ".venv/ignored.py").write_text("x = 1")
        write(text.replace("VERSION = 1", "VERSION = 2"))
        assert line_of(process, "restarting") == "tasks.py has changed, restarting\n"
        eventually(lambda: result() == 2)
        # A mistake does not end it: the next change is awaited.
        write("def broken(:\n")
        line_of(process, "SyntaxError")
        write(text.replace("VERSION = 1", "VERSION = 3"))
        line_of(process, "restarting")
        assert result() == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_worker_ends_when_its_supervisor_was_killed(project: Path, queue: sync.Queue) -> None:
    project.write_text(project.read_text().replace("    return VERSION", "    import os\n    return os.getpid()"))
    with started("tasks", "--reload") as process:
        worker = queue.wait(queue.submit("version", {}).id, timeout=60).output
        assert worker != process.pid
        process.kill()

        def has_ended() -> bool:
            try:
                os.kill(worker, 0)
            except ProcessLookupError:
                return True
            # Not yet reaped by the first process of this machine or container.
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

        eventually(has_ended)


def test_a_sync_handler_that_returns_after_it_was_cancelled_has_not_completed_its_task(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:

    with Leasehold(folder, durability="os") as app:
        begun, enough = threading.Event(), threading.Event()
        contexts = []

        @app.task
        def deaf(ctx: Context) -> str:
            contexts.append(ctx)
            begun.set()
            # Looks for its cancellation without taking part in it.
            while not ctx._run.is_cancelled():
                time.sleep(0.01)
            return "finished all the same"

        submission = deaf.submit()
        worker = threading.Thread(target=app.work, kwargs={"drain": True})
        worker.start()
        assert begun.wait(60)
        app.queue.cancel(submission.id)
        contexts[0].extend()
        task = submission.wait(timeout=60)
        worker.join()
    assert (task.status, task.output) == ("cancelled", None)
    assert [change.event for change in task.history] == ["submit", "claim", "cancel", "stop"]
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "handler returned although its task was cancelled, its output is dropped" in warning and task.id in warning


def test_a_sync_handler_that_returns_after_its_timeout_has_failed_and_its_error_says_so(folder: Path) -> None:
    with Leasehold(folder, durability="os") as app:

        @app.task(timeout=1, max_attempts=1)
        def late(ctx: Context) -> str:
            while not ctx._run.is_cancelled():
                time.sleep(0.01)
            return "too late"

        submission = late.submit()
        app.work(drain=True)
        task = submission.wait(timeout=60)
    assert (task.status, task.output) == ("failed", None)
    assert task.error == "did not finish within 1 s; it returned after that, and its output was dropped"
