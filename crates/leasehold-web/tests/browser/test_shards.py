"""The shard map, and its changes when a worker crashes."""

from __future__ import annotations

from collections.abc import Callable

from page import Page
from programs import Dashboard, Queue, killed

Serve = Callable[..., Dashboard]

# The shortest leases allowed, so that those of a crashed worker expire soon.
SHORT = {"LEASEHOLD_SHARD_LEASING_TTL_SECS": "3", "LEASEHOLD_SHARD_LEASING_RENEW_SECS": "1"}


def holders(page: Page) -> list[str]:
    return page.script("return [...document.querySelectorAll('.field-cell')].map((cell) => cell.dataset.holder ?? cell.dataset.state)")


def test_the_shard_map_changes_when_a_worker_crashes(queue: Queue, serve: Serve, page: Page) -> None:
    done = queue.program("done.sh", "echo '{}'")
    first = queue.worker("first", {"good": done}, "--shard-leasing", **SHORT)
    queue.worker("second", {"good": done}, "--shard-leasing", **SHORT)
    page.open(serve(queue), "shards")
    page.until("both hold half", lambda: sorted(holders(page)) == ["first"] * 8 + ["second"] * 8)
    assert page.texts(".holders .mono") == ["first", "second"]
    marks = page.texts(".field-cell .cell-mark")
    assert len(set(marks)) == 2

    # A selected cell shows its lease.
    page.click('.field-cell[data-holder="first"]')
    page.wait_for(".about", "first")
    page.wait_for(".about time")

    page.go("workers", "Workers")
    page.until("both are listed", lambda: {"first", "second"} <= set(page.texts("tbody td:first-child")))

    page.go("shards", "Shards")
    killed(first)
    page.until("the other takes over", lambda: set(holders(page)) == {"second"})
    assert page.texts(".holders .mono") == ["second"]
    page.until("it was announced", lambda: "held by second" in page.script("return document.getElementById('spoken').textContent"))


def test_running_tasks_of_a_shard_holder_count_as_running(folder_queue: Queue, serve: Serve, page: Page) -> None:
    # The holder of a shard claims without writing the index, in which such a task still appears as waiting.
    queue = folder_queue
    queue.worker("holder", {"slow": queue.hanging_program()}, "--shard-leasing")
    queue.submit_many([{"task_type": "slow"}] * 3 + [{"task_type": "nobody"}] * 2)
    page.open(serve(queue))
    page.until("three run and two wait", lambda: [page.tile("running"), page.tile("due")] == ["3", "2"])
    page.until("the chart says the same", lambda: page.texts(".card-depth .legend b") == ["3", "2", "0"])


def test_a_workers_name_links_to_its_tasks(folder_queue: Queue, serve: Serve, page: Page) -> None:
    folder_queue.submit_many([{"task_type": "good"}] * 2)
    folder_queue.work({"good": folder_queue.program("done.sh", "echo '{}'")})
    folder_queue.submit("nobody")
    page.open(serve(folder_queue), "workers")
    page.click("tbody a", "worker-1")
    page.until("the tasks it has run", lambda: page.texts("tr[data-id] .type") == ["good", "good"])


def test_without_leases_the_map_explains_why_it_is_empty(folder_queue: Queue, serve: Serve, page: Page) -> None:
    folder_queue.submit("greet")
    page.open(serve(folder_queue), "shards")
    page.until("all are free", lambda: holders(page) == ["free"] * 16)
    page.wait_for(".card-holders", "--shard-leasing")
    page.until("the shard with the task has a bar", lambda: len(page.all(".cell-due.level-10")) == 1)
