"""Stores for the tests: a folder, and a real S3 server that is started once and stopped exactly."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BINARIES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
COMMAND = BINARIES / "leasehold"
WEED = ROOT / ".venv/bin/weed"
BUCKET = "python-tests"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine's own settings say does not count, unless a test says it."""
    for name in list(os.environ):
        if name.startswith(("LEASEHOLD_", "AWS_")):
            monkeypatch.delenv(name)
    for folder in ("home", "work"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """A real S3 server; what to say to `connect` to reach it.

    It is held by a process of the Rust tests, which starts it on free ports and whose death ends it.
    """
    command = [BINARIES / "store-exerciser", "hold-weed", WEED, BUCKET, "0"]
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        weed, endpoint = int(holder.stdout.readline()), holder.stdout.readline().strip()
        yield {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "testsecret",
        }
        os.kill(weed, 0)
    finally:
        holder.kill()
        holder.communicate()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """What to say to `connect` for an empty queue, on each kind of store."""
    if request.param == "folder":
        return {"store": tmp_path / "data"}
    return {"store": f"s3://{BUCKET}/{uuid.uuid4()}", **request.getfixturevalue("s3")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a queue in a folder is."""
    return tmp_path / "data"


def command_line(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command line, the Rust program."""
    command = [str(COMMAND), *(str(arg) for arg in args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, **options)
