"""Finding tasks, and changing all that were found."""

from __future__ import annotations

from collections.abc import Callable

from page import Page
from programs import Dashboard, Queue, until

Serve = Callable[..., Dashboard]


def test_5000_tasks_are_filtered_and_paged_through(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    queue.submit_many(
        {"task_type": "rare" if number % 40 == 0 else "common", "input": number, "tags": {"lot": str(number % 10)}, "delay_secs": 3600}
        for number in range(5_000)
    )
    tasks = queue.tasks()
    dashboard = serve(queue)
    page.open(dashboard, "tasks")
    page.until("all are known", lambda: page.text("#total") == "5,000 tasks")

    # Every page, to the last.
    seen: list[str] = []
    for first in range(1, 5_000, 50):
        page.until(f"the page from {first}", lambda first=first: page.text("#page") == f"{first:,}–{first + 49:,} of 5,000")
        seen += page.rows()
        if first + 50 < 5_000:
            page.script("document.querySelector('a[rel=next]').click()")
    assert len(seen) == 5_000
    assert set(seen) == {task["id"] for task in tasks}
    assert page.all("span[rel=next][aria-disabled]")

    # By type, then also by tag, then by a part of an id; the address holds it all.
    page.go("tasks", "Tasks")
    page.script("const type = document.querySelectorAll('select')[0]; type.value = 'rare'; type.dispatchEvent(new Event('change'))")
    page.until("125 are rare", lambda: page.text("#total") == "125 tasks fit")
    page.click('a[rel="next"]')
    page.until("the second page", lambda: page.text("#page") == "51–100 of 125")
    tag = page.texts("tr[data-id] .tag")[0]
    page.click("tr[data-id] .tag")
    lot = tag.split()[-1]
    fitting = {task["id"] for task in tasks if task["tags"]["lot"] == lot}
    page.until("those of the lot", lambda: page.text("#total") == f"{len(fitting)} tasks fit")
    assert set(page.rows()) <= fitting

    wanted = tasks[1234]["id"]
    page.go("tasks", "Tasks")
    page.see("#search").send_keys(wanted[:13])
    page.until("the one task", lambda: page.rows() == [wanted])
    assert page.browser.current_url.endswith(f"#/tasks?q={wanted[:13]}")
    page.browser.refresh()
    page.until("the same after loading anew", lambda: page.rows() == [wanted])
    page.browser.back()
    page.until("the lot again", lambda: page.text("#total") == f"{len(fitting)} tasks fit")

    page.go("tasks?q=nothing-is-called-this", "Tasks")
    page.see(".empty", "No task fits")


def test_all_that_fit_are_retried_and_cancelled(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    queue.submit_many([{"task_type": "bad", "input": number} for number in range(6)] + [{"task_type": "other"}])
    queue.work({"bad": queue.program("bad.sh", "exit 65"), "other": queue.program("other.sh", "exit 65")})
    page.open(serve(queue, "--allow-actions"), "tasks?status=failed&type=bad")
    page.until("six have failed", lambda: page.text("#total") == "6 tasks fit")

    page.click(".bulk button", "retry all 6")
    page.click("dialog .main", "retry 6 tasks")
    page.see(".note", "6 tasks changed")
    page.until("none is left", lambda: page.text("#total") == "0 tasks fit")
    assert queue.counts() == {"pending": 6, "failed": 1}

    page.go("tasks?status=due&type=bad", "Tasks")
    page.until("six are due", lambda: page.text("#total") == "6 tasks fit")
    page.click(".bulk button", "cancel all 6")
    page.click("dialog button", "Leave it")
    page.until("the question goes", lambda: not page.all("dialog"))
    assert queue.counts() == {"pending": 6, "failed": 1}
    page.click(".bulk button", "cancel all 6")
    page.click("dialog .main", "cancel 6 tasks")
    until("all six are cancelled", lambda: queue.counts() == {"cancelled": 6, "failed": 1})
    page.until("none is left", lambda: page.text("#total") == "0 tasks fit")
