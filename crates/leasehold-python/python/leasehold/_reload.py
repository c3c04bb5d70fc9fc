"""Restart of a worker when a Python file of the project changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_VARIABLE = "LEASEHOLD_RELOAD_PIPE"
"""Environment variable with the file descriptor whose end is the end of the supervisor."""
_INTERVAL_SECS = 0.5
_STOP_SECS = 10
"""Time for running tasks when a file has changed. After that the worker is aborted, which uses up no attempt."""
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def supervise(args: Sequence[str]) -> int:
    """Runs `leasehold worker` with these arguments in a process, and again when a file changes. Returns an exit code."""
    stopped: list[int] = []
    wake = threading.Event()

    def on_signal(number: int, _: object) -> None:
        stopped.append(number)
        wake.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, on_signal)
    command = [sys.executable, "-m", "leasehold", "worker", *args]
    reading, writing = os.pipe()
    while True:
        files = _files(Path.cwd())
        process = subprocess.Popen(
            command,
            # A group of its own: Ctrl-C in a terminal reaches only this process, which passes it on once.
            process_group=0,
            pass_fds=[reading],
            env=os.environ | {_VARIABLE: str(reading)},
        )
        changed = _wait(process, files, stopped, wake)
        if changed is None:
            os.close(writing)
            return process.returncode
        print(f"{os.path.relpath(changed)} has changed, restarting", file=sys.stderr, flush=True)
        _end(process)


def _wait(
    process: subprocess.Popen[bytes], files: dict[Path, int], stopped: list[int], wake: threading.Event
) -> Path | None:
    """Returns a file that has changed, or none if the worker has ended and need not be started again."""
    passed = 0
    while True:
        while passed < len(stopped):
            if process.poll() is None:
                process.send_signal(stopped[passed])
            passed += 1
        if process.poll() is not None and (process.returncode == 0 or stopped):
            return None
        # One that failed, such as by an error at import, waits for the next change.
        wake.wait(_INTERVAL_SECS)
        wake.clear()
        if not stopped and (changed := _changed(files, _files(Path.cwd()))):
            return changed


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stops a worker: first running tasks may finish, then they are released."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(_STOP_SECS)
            except subprocess.TimeoutExpired:
                continue


def _files(folder: Path) -> dict[Path, int]:
    """Returns the modification times of the Python files below a folder."""
    return dict(_walk(folder))


def _walk(folder: Path) -> Iterator[tuple[Path, int]]:
    for parent, folders, names in os.walk(folder):
        # A folder with this file is a virtual environment.
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [each for each in folders if each not in _SKIPPED and not each.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                path = Path(parent, name)
                try:
                    yield path, path.stat().st_mtime_ns
                except FileNotFoundError:
                    # Removed since the folder was read.
                    continue


def _changed(before: dict[Path, int], now: dict[Path, int]) -> Path | None:
    return next((path for path in sorted(before.keys() | now.keys()) if before.get(path) != now.get(path)), None)


def end_with_supervisor() -> None:
    """Stops this process when its supervisor has ended, however that was."""
    pipe = os.environ.pop(_VARIABLE, None)
    if pipe is None:
        return
    descriptor = int(pipe)
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="leasehold-supervisor", daemon=True).start()
