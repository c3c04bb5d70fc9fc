"""Stores for the tests: a folder, and a real S3 server that is started and stopped once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[3]
BINARIES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
COMMAND = BINARIES / "leasehold"
WEED = ROOT / ".venv/bin/weed"
BUCKET = "python-tests"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Isolates the tests from the machine's settings and environment variables."""
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
    """Arguments of `connect` for a real S3 server.

    A process of the Rust tests starts it on free ports and ends it when that process ends.
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


class Proxy:
    """Forwards a local port to a server; can be stopped and started again."""

    def __init__(self, endpoint: str) -> None:
        address = urlsplit(endpoint)
        self._server_at = (address.hostname, address.port)
        self._open: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def be_there(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def be_away(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection(*self._server_at)
            self._open |= {writer, back}
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()
        self._open.discard(writer)


@pytest.fixture
async def proxy(s3: dict[str, str]) -> AsyncIterator[Proxy]:
    """A proxy in front of the S3 server."""
    proxy = Proxy(s3["endpoint"])
    await proxy.be_there()
    yield proxy
    proxy.be_away()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments of `connect` for an empty queue, on each kind of store."""
    if request.param == "folder":
        return {"store": tmp_path / "data"}
    return {"store": f"s3://{BUCKET}/{uuid.uuid4()}", **request.getfixturevalue("s3")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Path of a queue in a folder."""
    return tmp_path / "data"


def command_line(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the Rust command line."""
    command = [str(COMMAND), *(str(arg) for arg in args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, **options)
