"""The first programs of users who come from elsewhere: their tests, a producer process and a worker process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples/python"
FIRST = {
    "from_celery": ("tasks", "8\n"),
    "from_rq": ("jobs", "True\ncompleted\n"),
    "from_dramatiq": ("actors", "True True\n"),
}


def python(*args: object) -> str:
    done = subprocess.run([sys.executable, "-W", "error", *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """Copies an example into the working directory of the test."""
    shutil.copytree(EXAMPLES / request.param, Path.cwd(), dirs_exist_ok=True)
    return str(request.param)


@pytest.mark.parametrize("project", FIRST, indirect=True)
def test_a_producer_and_a_worker_are_processes(project: str) -> None:
    module, printed = FIRST[project]
    worker = subprocess.Popen([sys.executable, "-m", "leasehold", "worker", module])
    try:
        assert python("producer.py") == printed
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()


@pytest.mark.parametrize("project", ["from_script"], indirect=True)
def test_a_script_submits_and_works(project: str) -> None:
    assert python("thumbnails.py", "submit", "a.jpg", "b.jpg") == "2 submitted\n"
    assert python("thumbnails.py", "submit", "b.jpg", "c.jpg") == "1 submitted\n"
    assert python("thumbnails.py", "work") == "3 completed\n"


@pytest.mark.parametrize("project", [*FIRST, "from_script"], indirect=True)
def test_the_example_is_short_and_typed_and_its_test_passes(project: str, tmp_path: Path) -> None:
    files = sorted(Path.cwd().glob("*.py"))
    assert len(files) >= 2
    for each in files:
        assert len(each.read_text().splitlines()) <= 30, each
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *Path.cwd().glob("test_*.py"))
    python("-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", *files)
