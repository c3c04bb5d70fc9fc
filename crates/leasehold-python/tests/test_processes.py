"""Handlers in processes: results, crashes, cancellation, and the end of the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes_app import app, burn, deaf, ends, naps, stops, use_context, wait_for

from leasehold import Error, Invalid, Leasehold, NotCompleted, Submission


@pytest.fixture(autouse=True)
def connection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LEASEHOLD_STORE", str(folder))
    with app:
        yield


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children_of(process: int) -> set[int]:
    """Processes that have this parent."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = path.read_text().rpartition(")")[::2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields.split()[1]) == process and "Z" != fields.split()[0]:
            found.add(int(name.split()[0]))
    return found


def lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_many_tasks_use_several_processes_again_and_again() -> None:
    results = app.submit_many(burn.new_task(number) for number in range(2_000))
    assert not any(isinstance(each, Error) for each in results)
    assert app.work(drain=True, concurrency=2).completed == 2_000
    outputs = [task.output for task in app.queue.list()]
    processes = Counter(output[0] for output in outputs)
    assert len(processes) == 2 and os.getpid() not in processes
    # Both all the time: a queue of one would leave the second idle.
    assert min(processes.values()) > 200, processes
    assert sum(output[1] for output in outputs) == sum(range(2_000)) ** 2
    assert not any(lives(each) for each in processes)


def test_the_context_middleware_and_lifespans_work_in_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = tmp_path / "ended"
    monkeypatch.setenv("TEST_LIFESPAN", str(ended))
    submission, nap = use_context.submit("word"), naps.submit()
    app.work(drain=True, concurrency=1)
    assert submission.result() == "1 1 use_context ['middleware', 'open']"
    assert nap.result() == 2
    task = submission.wait()
    assert task.progress is None or task.progress == {"percent": 50}
    app.queue.fetch(task.results["result"], tmp_path / "fetched")
    assert (tmp_path / "fetched").read_text() == "word"
    # The lifespan ended in the process, and in the worker.
    assert len(set(ended.read_text().split())) == 2 and str(os.getpid()) in ended.read_text()
    # Called directly, the function runs here.
    assert burn(1)[0] == os.getpid()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "ProcessEnded: the process of the handler ended with exit code 3"),
        ("segfault", "ProcessEnded: the process of the handler was killed by SIGSEGV"),
        ("kill", "ProcessEnded: the process of the handler was killed by SIGKILL"),
        ("value", "ValueError: bad luck"),
        ("permanent", "Permanent: hopeless"),
        ("odd", "RuntimeError: Odd: 1 and 2"),
        ("system", "SystemExit: 5"),
        ("output", "Permanent: the output cannot be written as JSON"),
    ],
)
def test_a_handler_that_fails_or_ends_its_process_fails_its_own_attempt_only(
    tmp_path: Path, how: str, message: str
) -> None:
    done, started = tmp_path / "done", tmp_path / "started"
    other, failed = wait_for.submit(str(done), str(started)), ends.submit(how)

    def release() -> None:
        failed.wait(timeout=60)
        done.touch()

    released = threading.Thread(target=release)
    released.start()
    counts = app.work(drain=True, concurrency=2)
    released.join()
    assert (counts.completed, counts.failed) == (1, 1)
    assert other.wait().attempt == 1
    with pytest.raises(NotCompleted, match=message):
        failed.result()
    error = failed.wait().error or ""
    if how in ("value", "permanent"):
        assert 'processes_app.py", line ' in error and "in ends" in error and "leasehold/_" not in error


@pytest.mark.parametrize("task", [stops, deaf], ids=["cooperative", "deaf"])
def test_a_cancelled_handler_is_stopped_and_one_that_does_not_stop_is_killed(tmp_path: Path, task: Callable[..., object]) -> None:
    started = tmp_path / "started"
    submission = task.submit(str(started))  # type: ignore[attr-defined]
    assert isinstance(submission, Submission)

    def cancel() -> None:
        eventually(started.exists)
        app.queue.cancel(submission.id)

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    # A claim is renewed after a third of this time.
    counts = app.work(drain=True, lease_secs=3)
    cancelling.join()
    assert (counts.cancelled, submission.wait().status) == (1, "cancelled")
    assert not lives(int(started.read_text()))


@pytest.mark.parametrize("how", ["drain", "abort", "kill"])
def test_the_end_of_a_worker_leaves_no_process(tmp_path: Path, how: str) -> None:
    done, started = tmp_path / "done", tmp_path / "started"
    submission = wait_for.submit(str(done), str(started)) if how == "drain" else deaf.submit(str(started))
    command = [sys.executable, "-m", "leasehold", "worker", "processes_app", "--concurrency", "2"]
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
    # A group of its own: a signal to the group is Ctrl-C in a terminal.
    worker = subprocess.Popen(command, env=environment, process_group=0)
    try:
        eventually(lambda: started.exists() and started.read_text())
        processes = children_of(worker.pid)
        assert int(started.read_text()) in processes
        match how:
            case "drain":
                os.killpg(worker.pid, signal.SIGTERM)
                done.touch()
                assert worker.wait(60) == 0
                assert submission.wait().status == "completed"
            case "abort":
                os.killpg(worker.pid, signal.SIGINT)
                os.killpg(worker.pid, signal.SIGTERM)
                assert worker.wait(60) == 0
                assert submission.id and app.queue.get(submission.id).status == "pending"
            case "kill":
                worker.kill()
                worker.wait()
        eventually(lambda: not any(lives(each) for each in processes))
    finally:
        worker.kill()
        worker.wait()


def test_a_function_that_a_process_cannot_run_is_refused() -> None:
    own = Leasehold("memory://")

    async def not_sync() -> None: ...

    with pytest.raises(Invalid, match='executor="process" is for functions that are not async'):
        own.task(executor="process")(not_sync)
    with pytest.raises(Invalid, match='executor must be "process" or None'):
        own.task(executor="thread")  # type: ignore[call-overload]

    @own.task(executor="process", max_attempts=1)
    def local() -> None: ...

    submission = local.submit()
    own.work(drain=True)
    with pytest.raises(NotCompleted, match="has no task `local` at module level"):
        submission.result()
    own.close()


