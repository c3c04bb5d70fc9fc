"""The dashboard of a queue in the layout `journal`: its broker, its workers, and changes of its tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import Popen

from page import DESKTOP, PHONE, Page
from programs import Dashboard, Queue, killed

Serve = Callable[..., Dashboard]


def broker_of(queue: Queue) -> Popen[str]:
    """Starts the broker, and waits until it serves."""
    broker = queue.start("broker")
    assert broker.stdout is not None
    line = broker.stdout.readline()
    assert json.loads(line)["is_broker"], line
    return broker


def worked(queue: Queue) -> None:
    """Runs some tasks to their end."""
    queue.submit_many([{"task_type": "good"}] * 7 + [{"task_type": "bad"}] * 2)
    queue.work({"good": queue.program("done.sh", "echo '{}'"), "bad": queue.program("bad.sh", "echo broken >&2; exit 65")})


def fact(page: Page, name: str) -> str:
    """Value of a fact in the card of the broker."""
    facts = dict(zip(page.texts("section.card-broker dt"), page.texts("section.card-broker dd"), strict=True))
    return facts.get(name, "")


def test_the_overview_shows_the_broker_and_counts_the_tasks(journal_queue: Queue, serve: Serve, page: Page) -> None:
    queue = journal_queue
    broker = broker_of(queue)
    worked(queue)
    waiting = queue.submit("nobody")
    page.open(serve(queue))
    page.until("all tasks are counted", lambda: [page.tile(name) for name in ("completed", "failed", "due")] == ["7", "2", "1"])
    page.wait_for("section.card-broker .pill", "serving")
    assert fact(page, "process").startswith(f"{broker.pid} on ")
    assert fact(page, "epoch") == "1"
    page.until("the dashboard is its only client", lambda: fact(page, "clients") == "1")
    assert fact(page, "commit, p99").endswith(" ms")
    assert page.texts("nav[aria-label=Views] a > span:not(.badge)") == ["Overview", "Tasks", "Workers", "Settings"]
    assert page.wait_for(".failure .error-line", "broken")
    # A journal has no shards.
    page.script("location.hash = '#/shards'")
    page.until("the overview instead of the shards", lambda: page.text("main h1") == "Overview")
    page.go("tasks", "Tasks")
    page.until("ten tasks", lambda: len(page.rows()) == 10)
    assert "SHARD" not in page.text("thead").upper()
    # The page updates itself.
    queue.run("cancel", waiting)
    page.go("overview", "Overview")
    page.until("the task is cancelled", lambda: page.tile("cancelled") == "1")


def test_a_task_is_cancelled_and_retried_from_the_page(journal_queue: Queue, serve: Serve, page: Page) -> None:
    queue = journal_queue
    broker_of(queue)
    task = queue.submit("report", {"name": "Ada"})
    page.open(serve(queue, "--allow-actions"), f"tasks/{task}")
    page.wait_for(".card-input", "Ada")
    page.click(".task-heading button", "Cancel")
    page.click("dialog .main", "Cancel")
    page.wait_for("h1 .pill", "cancelled")
    assert queue.get(task)["status"] == "cancelled"
    page.click(".task-heading button", "Retry")
    page.click("dialog .main", "Retry")
    page.wait_for("h1 .pill", "due")
    assert "shard" not in page.texts(".card-facts dt")


def test_workers_are_those_that_report_themselves(journal_queue: Queue, serve: Serve, page: Page) -> None:
    queue = journal_queue
    broker = broker_of(queue)
    page.open(serve(queue), "workers")
    page.wait_for(".empty", "connected to the broker")
    slow = queue.submit("slow")
    ada = queue.worker("ada", {"slow": queue.hanging_program()}, "--concurrency", 3, "--lease-secs", 3)
    page.wait_for("tbody .pill", "alive")
    page.wait_for("tbody tr", slow[-8:])
    row = page.text("tbody tr")
    assert all(word in row for word in ("ada", "slow", "3", str(ada.pid))), row
    killed(ada)
    page.wait_for("tbody .pill", "dead")
    killed(broker)
    page.wait_for("main p", "As the last broker knew them")


def test_the_page_says_that_there_is_no_broker_until_there_is_one(journal_queue: Queue, serve: Serve, page: Page) -> None:
    queue = journal_queue
    queue.submit("report")
    dashboard = serve(queue)
    page.open(dashboard)
    page.wait_for("#banner", "No broker can be reached")
    page.wait_for("section.card-broker", "released its lease")
    page.until("the task is read from the log", lambda: page.tile("due") == "1")
    for size in (DESKTOP, PHONE):
        page.size(*size)
        assert not page.is_wider_than_the_window(), size
    page.size(*DESKTOP)
    broker = broker_of(queue)
    page.wait_for("section.card-broker .pill", "serving")
    page.until("the banner disappears", lambda: page.text("#banner") == "")
    killed(broker)
    page.wait_for("section.card-broker .pill", "not reached")
    page.wait_for("#banner", "No broker can be reached")
    assert page.tile("due") == "1"
