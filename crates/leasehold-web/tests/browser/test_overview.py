"""The overview."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from page import DESKTOP, PHONE, Page
from programs import Dashboard, Queue, killed, until

Serve = Callable[..., Dashboard]

# Renders a chart with this highest value, in seconds, and returns its axis labels with their distance beyond the card.
LABELS = """
const [secs, done] = arguments;
Promise.all([import('/static/charts.js'), import('/static/format.js'), import('/static/parts.js')]).then(([charts, format, parts]) => {
  const card = parts.card('Probe', {id: 'probe'}, charts.chart({
    name: 'Probe', kind: 'lines', format: format.duration, round: charts.roundDuration, moment: () => '', ends: ['', ''], summary: '', resting: '',
    series: [{name: 'probe', tone: 'due', values: [secs, secs]}],
  }));
  document.querySelector('main .grid').append(card);
  const edge = card.getBoundingClientRect().right - parseFloat(getComputedStyle(card).paddingRight);
  const labels = [...card.querySelectorAll('.axis')].map((one) => [one.textContent, Math.round(one.getBoundingClientRect().right - edge)]);
  card.remove();
  done(labels);
}, (error) => done(String(error)));
"""


def test_the_overview_has_the_counts_of_the_queue(queue: Queue, serve: Serve, page: Page) -> None:
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
    shown = {status: int(page.tile(status)) for status in ("running", "completed", "failed", "cancelled", "expired", "due", "scheduled")}
    assert shown.pop("due") == 3
    assert shown.pop("scheduled") == 4
    assert counts["pending"] == 7
    assert shown == {status: counts[status] for status in shown}
    assert page.wait_for(".card-types a.type", "nobody")
    assert page.wait_for(".failure .error-line", "broken")
    if queue.store.startswith("s3://"):
        assert page.wait_for(".price-value", "US$")
    else:
        # A folder has no request prices.
        page.wait_for(".card-cost h2", "Requests")
        assert "US$" not in page.text("body")

    # The page updates itself.
    queue.submit("nobody")
    page.until("the new task is counted", lambda: page.tile("due") == "4")
    page.wait_for("nav .badge", "9")


def test_a_tile_links_to_its_tasks(folder_queue: Queue, serve: Serve, page: Page) -> None:
    due = folder_queue.submit("now")
    later = folder_queue.submit("later", None, "--delay", 3600)
    page.open(serve(folder_queue))
    page.click('[data-count="scheduled"]')
    page.until("the one that is scheduled", lambda: page.rows() == [later])
    page.browser.back()
    page.click('[data-count="due"]')
    page.until("the one that is due", lambda: page.rows() == [due])


def test_an_empty_queue_shows_the_command_to_run(folder_queue: Queue, serve: Serve, page: Page) -> None:
    dashboard = serve(folder_queue)
    page.open(dashboard)
    page.wait_for(".empty", "leasehold submit")
    page.go("tasks", "Tasks")
    page.wait_for(".empty", "leasehold submit")
    page.go("workers", "Workers")
    page.wait_for(".empty", "leasehold worker")
    assert page.texts("nav[aria-label=Views] a > span:not(.badge)") == ["Overview", "Tasks", "Workers", "Shards", "Settings"]
    # It fills automatically.
    page.go("tasks", "Tasks")
    task = folder_queue.submit("greet")
    page.until("the new task appears", lambda: page.rows() == [task])


def test_artifacts_are_in_the_navigation_when_there_are_any(folder_queue: Queue, serve: Serve, page: Page) -> None:
    (folder_queue.folder / "photo.raw").write_bytes(b"a photo" * 1_000)
    artifact = folder_queue.run("artifact", "put", "photo.raw")[0]["artifact"]
    page.open(serve(folder_queue))
    page.click("nav a", "Artifacts")
    page.wait_for("tbody tr", artifact[:16])
    page.wait_for("tbody tr", "6.8 KiB")
    page.wait_for("tbody .pill", "published")


@pytest.mark.complains("ERR_CONNECTION_REFUSED")
@pytest.mark.complains("ERR_EMPTY_RESPONSE")
@pytest.mark.complains("ERR_CONNECTION_RESET")
@pytest.mark.complains("ERR_INCOMPLETE_CHUNKED_ENCODING")
def test_a_banner_shows_that_the_server_is_down_until_it_is_back(folder_queue: Queue, serve: Serve, page: Page) -> None:
    dashboard = serve(folder_queue)
    page.open(dashboard)
    killed(folder_queue.started[-1])
    page.wait_for("#banner", "is not responding")
    again = folder_queue.start("dashboard", "--port", urlsplit(dashboard.url).port)
    assert again.stdout is not None and again.stdout.readline()
    page.until("the banner disappears", lambda: page.text("#banner") == "")


def test_a_chart_can_be_read_with_the_arrow_keys(folder_queue: Queue, serve: Serve, page: Page) -> None:
    done = folder_queue.program("done.sh", "echo '{}'")
    folder_queue.submit_many([{"task_type": "good"}] * 3)
    folder_queue.work({"good": done})
    page.open(serve(folder_queue))
    legend = ".card-throughput .legend"
    page.until("three were completed", lambda: "completed 3" in page.text(legend).replace("\n", " "))
    page.tab_to(".card-throughput figure")

    def read() -> int:
        """Moves one minute back, starting at the newest, and returns its value."""
        page.press("\ue012")  # arrow left
        return int(page.text(f"{legend} .key b"))

    # The tasks finished in this minute, the one before, or both.
    assert sum(read() for _ in range(3)) == 3
    assert ":" in page.text(f"{legend} .moment")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=lambda size: f"{size[0]}px")
def test_the_labels_of_an_axis_stay_in_their_card(folder_queue: Queue, serve: Serve, page: Page, size: tuple[int, int]) -> None:
    folder_queue.submit("report")
    page.size(*size)
    page.open(serve(folder_queue))
    page.wait_for("main .grid")
    for secs in (0.004, 0.7, 9, 100, 200, 3_000, 12_000, 80_000, 900_000, 40_000_000):
        labels = page.browser.execute_async_script(LABELS, secs)
        assert len(labels) == 2, labels
        assert all(beyond <= 0 for _, beyond in labels), (secs, labels)


def test_equal_errors_are_one_line_with_a_count(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    queue.submit_many([{"task_type": "bad", "input": number} for number in range(8)] + [{"task_type": "other"}])
    queue.work({"bad": queue.program("bad.sh", "echo broken >&2; exit 65"), "other": queue.program("other.sh", "echo lonely >&2; exit 65")})
    page.open(serve(queue))
    page.until("two lines for nine failures", lambda: len(page.texts(".failure")) == 2)
    assert page.wait_for(".failure", "broken").text.count("× 8") == 1
    assert "×" not in page.wait_for(".failure", "lonely").text
    page.click(".failure", "broken")
    page.until("all eight", lambda: page.text("#total") == "8 tasks match")
    assert page.browser.current_url.endswith("#/tasks?status=failed&type=bad&q=broken")
    page.browser.back()
    page.click(".failure", "lonely")
    page.wait_for("h1 .pill", "failed")


def test_due_tasks_of_a_type_that_no_worker_claims_are_highlighted(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    nobody = queue.submit("nobody", None, "--at", "2026-01-01T00:00:00Z")
    # The record is backdated instead of waiting two minutes.
    queue.rewrite(nobody, created_at="2026-01-01T00:00:00.000Z")
    slow = queue.submit("slow")
    queue.worker("worker-1", {"slow": queue.hanging_program()})
    until("the slow task runs", lambda: queue.get(slow)["status"] == "running")
    page.open(serve(queue))
    page.wait_for(".health b", "No worker has claimed tasks of type nobody for")
    page.wait_for(".card-types tr", "nobody no worker")
    assert len(page.texts(".card-types tbody .pill")) == 1
    page.go("tasks", "Tasks")
    page.wait_for(f'tr[data-id="{nobody}"]', "no worker has claimed this type for")
    assert "no worker" not in page.wait_for(f'tr[data-id="{slow}"]').text
    page.go(f"tasks/{nobody}", "nobody due")
    page.wait_for(".banner", "No worker has claimed a task of this type for")

    queue.worker("worker-2", {"nobody": queue.program("done.sh", "echo '{}'")})
    page.wait_for("h1 .pill", "completed")
    page.until("the task has no warning", lambda: not page.all("main .banner"))
    page.go("overview", "Overview")
    page.until("the overview has no warning", lambda: "No worker" not in page.text(".health") and not page.all(".card-types tbody .pill"))
