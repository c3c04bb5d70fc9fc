"""Creates the screenshots of the README. Not a test: run it manually when the page has changed.

    .venv/bin/pytest crates/leasehold-web/tests/browser/pictures.py
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import boto3

from conftest import BUCKET
from page import Page
from programs import ROOT, Dashboard, Queue, until
from test_appearance import shown, worked

IMAGES = ROOT / "docs/images"


def test_pictures_for_the_readme(tmp_path: Path, env: dict[str, str], s3: dict[str, str], page: Page) -> None:
    with Queue(f"s3://{BUCKET}/tasks", tmp_path, {**env, **s3}) as queue:
        worked(queue, 600, 21)
        spread(s3)
        board, places = shown(queue, 621)
        rise_and_fall(queue, board)
        IMAGES.mkdir(exist_ok=True)

        def picture(name: str, place: str, size: tuple[int, int], scheme: str, *, scale: float = 1.5) -> None:
            page.size(*size, scale=scale)
            page.prefer(scheme)
            page.open(board, "overview")
            places[place].visit(page)
            page.script("document.activeElement.blur()")
            path = IMAGES / f"{name}.png"
            assert page.browser.save_screenshot(str(path))
            assert path.stat().st_size > 10_000

        picture("overview-light", "overview", (1280, 1080), "light")
        picture("overview-dark", "overview", (1280, 1080), "dark")
        picture("tasks", "tasks", (1280, 779), "light")
        picture("task", "task", (1280, 782), "light")
        picture("shards", "shards", (1280, 560), "dark")
        picture("phone", "overview", (390, 780), "light", scale=2)


def spread(s3: dict[str, str]) -> None:
    """For the screenshots only: shifts the times in all records so that they fill the last hour."""
    client = boto3.client(
        "s3", endpoint_url=s3["AWS_ENDPOINT_URL"], region_name=s3["AWS_REGION"],
        aws_access_key_id=s3["AWS_ACCESS_KEY_ID"], aws_secret_access_key=s3["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    chance = Random(7)
    for listed in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="tasks/tasks/"):
        for entry in listed["Contents"]:
            task = client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read().decode()
            earlier = timedelta(minutes=59 * chance.betavariate(1.3, 2.2), milliseconds=300)
            moved = re.sub(r"20\d\d-\d\d-\d\dT[\d:.]+Z", lambda at, by=earlier: moment(datetime.fromisoformat(at[0]) - by), task)
            client.put_object(Bucket=BUCKET, Key=entry["Key"], Body=moved.encode())


def moment(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rise_and_fall(queue: Queue, board: Dashboard) -> None:
    """For the screenshots only: submits and runs tasks until the depth chart has enough samples."""
    queue.worker("dora", {"translate": queue.program("translate.sh", "sleep 3")}, "--concurrency", 2)
    chance = Random(7)
    samples = 0

    def has_enough() -> bool:
        nonlocal samples
        seen = len(board.overview()["charts"]["depth"])
        if seen > samples and chance.random() < 0.6:
            queue.submit_many([{"task_type": "translate"}] * chance.randint(1, 9))
        samples = seen
        return samples >= 30

    until("thirty samples", has_enough, secs=300)
    queue.submit_many([{"task_type": "translate"}] * 14)
