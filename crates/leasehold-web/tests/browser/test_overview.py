"""The queue at a glance."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from page import Page
from programs import Dashboard, Queue, killed, until

Serve = Callable[..., Dashboard]


def test_the_overview_counts_what_the_queue_counts(queue: Queue, serve: Serve, page: Page) -> None:
    done = queue.program("done.sh", "echo '{}'")
    bad = queue.program("bad.sh", "echo broken >&2; exit 65")
    queue.submit_many([{"task_type": "good"}] * 7 + [{"task_type": "bad"}] * 2)
    queue.work({"good": done, "bad": bad})
    queue.submit_many([{"task_type": "later", "delay_secs": 3600}] * 4 + [{"task_type": "nobody"}] * 3)
    queue.run("cancel", queue.submit("nobody"))
    slow = queue.submit("slow")
    queue.worker("worker-2", {"slow": queue.hanging_program()})
    until("the slow task runs", lambda: queue.get(slow)["status"] == "running")

    page.open(serve(queue))
    page.until("all tasks are counted", lambda: page.tile("running") == "1" and page.tile("completed") == "7")
    counts = queue.counts()
    told = {status: int(page.tile(status)) for status in ("running", "completed", "failed", "cancelled", "expired", "due", "scheduled")}
    assert told.pop("due") == 3
    assert told.pop("scheduled") == 4
    assert counts["pending"] == 7
    assert told == {status: counts[status] for status in told}
    assert page.see(".card-types a.type", "nobody")
    assert page.see(".failure .error-line", "broken")
    assert page.see(".price-value", "US$")

    # What happens while the page is open is seen without a touch.
    queue.submit("nobody")
    page.until("the new task is counted", lambda: page.tile("due") == "4")
    page.see("nav .badge", "9")


def test_a_tile_leads_to_its_tasks(folder_queue: Queue, serve: Serve, page: Page) -> None:
    due = folder_queue.submit("now")
    later = folder_queue.submit("later", None, "--delay", 3600)
    page.open(serve(folder_queue))
    page.click('[data-count="scheduled"]')
    page.until("the one that is scheduled", lambda: page.rows() == [later])
    page.browser.back()
    page.click('[data-count="due"]')
    page.until("the one that is due", lambda: page.rows() == [due])


def test_an_empty_queue_says_what_to_type(folder_queue: Queue, serve: Serve, page: Page) -> None:
    dashboard = serve(folder_queue)
    page.open(dashboard)
    page.see(".empty", "leasehold submit")
    page.go("tasks", "Tasks")
    page.see(".empty", "leasehold submit")
    page.go("workers", "Workers")
    page.see(".empty", "leasehold worker")
    assert page.texts("nav[aria-label=Views] a > span:not(.badge)") == ["Overview", "Tasks", "Workers", "Shards", "Settings"]
    # It fills by itself.
    page.go("tasks", "Tasks")
    task = folder_queue.submit("greet")
    page.until("the new task appears", lambda: page.rows() == [task])


def test_artifacts_are_in_the_navigation_when_there_are_any(folder_queue: Queue, serve: Serve, page: Page) -> None:
    (folder_queue.folder / "photo.raw").write_bytes(b"a photo" * 1_000)
    artifact = folder_queue.run("artifact", "put", "photo.raw")[0]["artifact"]
    page.open(serve(folder_queue))
    page.click("nav a", "Artifacts")
    page.see("tbody tr", artifact[:16])
    page.see("tbody tr", "6.8 KiB")
    page.see("tbody .pill", "published")


@pytest.mark.complains("ERR_CONNECTION_REFUSED")
@pytest.mark.complains("ERR_EMPTY_RESPONSE")
@pytest.mark.complains("ERR_CONNECTION_RESET")
@pytest.mark.complains("ERR_INCOMPLETE_CHUNKED_ENCODING")
def test_a_lost_server_is_told_of_until_it_is_back(folder_queue: Queue, serve: Serve, page: Page) -> None:
    dashboard = serve(folder_queue)
    page.open(dashboard)
    killed(folder_queue.started[-1])
    page.see("#banner", "does not answer")
    again = folder_queue.start("dashboard", "--port", urlsplit(dashboard.url).port)
    assert again.stdout is not None and again.stdout.readline()
    page.until("the banner goes", lambda: page.text("#banner") == "")


def test_a_chart_can_be_read_with_the_arrow_keys(folder_queue: Queue, serve: Serve, page: Page) -> None:
    done = folder_queue.program("done.sh", "echo '{}'")
    folder_queue.submit_many([{"task_type": "good"}] * 3)
    folder_queue.work({"good": done})
    page.open(serve(folder_queue))
    legend = ".card-throughput .legend"
    page.until("three were completed", lambda: "completed 3" in page.text(legend).replace("\n", " "))
    page.tab_to(".card-throughput figure")

    def read() -> int:
        """What the keys have led to: the minutes of the last hour, from the newest back."""
        page.press("\ue012")  # arrow left
        return int(page.text(f"{legend} .key b"))

    # The tasks ended in this minute or the one before, or on both sides of its turn.
    assert sum(read() for _ in range(3)) == 3
    assert ":" in page.text(f"{legend} .moment")
