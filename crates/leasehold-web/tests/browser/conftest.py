"""Fixtures: a browser, queues on each kind of store, and dashboards over them."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from page import DESKTOP, Page, open_browser
from programs import EXERCISER, LEASEHOLD, WEED, Dashboard, Queue, dashboard

BUCKET = "my-bucket"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "complains(text): console messages with this text are expected during the test")


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    for path in (LEASEHOLD, EXERCISER, WEED):
        assert path.exists(), f"{path} is missing: run ./test, which builds and installs it"


@pytest.fixture(scope="session")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment without the machine's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEHOLD_", "AWS_", "XDG_", "OTEL_"))}
    return {**kept, "HOME": str(tmp_path_factory.mktemp("home"))}


@pytest.fixture(scope="session")
def s3(env: dict[str, str]) -> Iterator[dict[str, str]]:
    """Environment variables for a real S3 server.

    A process of the Rust tests starts it on free ports and ends it when that process ends.
    """
    command = [EXERCISER, "hold-weed", WEED, BUCKET, "0"]
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert holder.stdout is not None
        weed, endpoint = int(holder.stdout.readline()), holder.stdout.readline().strip()
        yield {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testsecret"}
        os.kill(weed, 0)
    finally:
        holder.kill()
        holder.communicate()


@pytest.fixture
def folder_queue(tmp_path: Path, env: dict[str, str]) -> Iterator[Queue]:
    """An empty queue in a folder."""
    with Queue(str(tmp_path / "data"), tmp_path, env) as queue:
        yield queue


@pytest.fixture
def journal_queue(tmp_path: Path, env: dict[str, str]) -> Iterator[Queue]:
    """An empty queue in the layout `journal`, in a folder."""
    with Queue(str(tmp_path / "data"), tmp_path, env, "journal") as queue:
        yield queue


@pytest.fixture(params=["folder", "s3"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, env: dict[str, str]) -> Iterator[Queue]:
    """An empty queue on each kind of store."""
    if request.param == "folder":
        queue = Queue(str(tmp_path / "data"), tmp_path, env)
    else:
        queue = Queue(f"s3://{BUCKET}/{uuid.uuid4()}", tmp_path, {**env, **request.getfixturevalue("s3")})
    with queue:
        yield queue


@pytest.fixture
def serve() -> Callable[..., Dashboard]:
    """Starts a dashboard over a queue; it is stopped with the queue's other programs."""
    return dashboard


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium and driver, "chromium and chromedriver are missing: on Debian, apt-get install chromium chromium-driver"
    browser = open_browser(chromium, driver, str(tmp_path_factory.mktemp("profile")))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser: Chrome, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page at desktop width; at the end of the test the console must be empty."""
    page = Page(browser)
    page.size(*DESKTOP)
    page.prefer("light")
    page.console_errors()
    yield page
    allowed = [mark.args[0] for mark in request.node.iter_markers("complains")]
    console_errors = [one for one in page.console_errors() if not any(text in one for text in allowed)]
    page.script("if (location.protocol.startsWith('http')) { localStorage.clear(); sessionStorage.clear(); }")
    browser.get("about:blank")
    assert console_errors == []
