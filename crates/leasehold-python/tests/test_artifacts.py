"""Artifacts: input files and result files of tasks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from conftest import command_line

import leasehold.sync
from leasehold import Context, Invalid, NotFound, Status, Worker, connect

BYTES = bytes(range(256)) * 12_000


async def test_a_task_reads_an_input_file_and_publishes_a_result(store: dict[str, Any], tmp_path: Path) -> None:
    async with await connect(**store) as queue:
        (tmp_path / "in.bin").write_bytes(BYTES)
        given = await queue.publish(tmp_path / "in.bin", media_type="application/x-test")
        assert (given.size, given.name, given.was_there) == (len(BYTES), "in.bin", False)
        assert (await queue.publish(tmp_path / "in.bin")).was_there

        worker = Worker(queue, "worker-1")
        directories: list[Path] = []

        @worker.task("reverse")
        def reverse(ctx: Context, input: None) -> str:
            data = ctx.artifacts["data"].read_bytes()
            result = ctx.directory / "out"
            result.write_bytes(data[::-1])
            directories.append(result.parent)
            ctx.publish("reversed", result)
            return hashlib.sha256(data).hexdigest()

        task = await queue.submit("reverse", artifacts={"data": given})
        assert (await worker.run(drain=True)).completed == 1
        done = await queue.get(task.id)
        assert [directory.exists() for directory in directories] == [False]
        assert done.output == hashlib.sha256(BYTES).hexdigest()
        assert done.artifacts == {"data": given.id}
        await queue.fetch(done.results["reversed"], tmp_path / "back.bin")
        assert (tmp_path / "back.bin").read_bytes() == BYTES[::-1]


async def test_a_task_whose_file_was_never_published_fails_permanently(folder: Path) -> None:
    async with await connect(folder) as queue:
        worker = Worker(queue, "worker-1")

        @worker.task("read")
        async def read(ctx: Context, input: None) -> None:
            raise AssertionError("the handler started without its file")

        task = await queue.submit("read", artifacts={"data": "0" * 64})
        await worker.run(drain=True)
        failed = await queue.get(task.id)
        assert (failed.status, failed.attempt) == (Status.FAILED, 1)
        assert "artifact `data` was not fetched: there is no artifact" in str(failed.error)


async def test_invalid_artifact_calls_are_rejected(folder: Path, tmp_path: Path) -> None:
    async with await connect(folder) as queue:
        with pytest.raises(Invalid, match="there is no file"):
            await queue.publish(tmp_path / "nothing")
        with pytest.raises(NotFound, match="there is no artifact"):
            await queue.fetch("0" * 64, tmp_path / "out")
        with pytest.raises(Invalid, match="is not an artifact hash"):
            await queue.fetch("../etc/passwd", tmp_path / "out")
        with pytest.raises(Invalid):
            await queue.submit("read", artifacts={"../data": "0" * 64})
        assert not (tmp_path / "out").exists()


def test_python_and_the_command_line_exchange_artifacts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(BYTES)
    with leasehold.sync.connect(folder) as queue:
        published = queue.publish(tmp_path / "in.bin")
        command_line("artifact", "get", published.id, "-o", tmp_path / "out.bin", "--store", folder)
        assert (tmp_path / "out.bin").read_bytes() == BYTES
        printed = command_line("artifact", "put", tmp_path / "out.bin", "--store", folder).stdout
        assert published.id in printed
        queue.fetch(published, tmp_path / "again.bin")
        assert (tmp_path / "again.bin").read_bytes() == BYTES
