"""Searching tasks, and bulk actions."""

from __future__ import annotations

from collections.abc import Callable

from selenium.webdriver.common.keys import Keys

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
    page.until("all tasks are loaded", lambda: page.text("#total") == "5,000 tasks")

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

    # By type, then also by tag, then by a part of an id; the address has the whole filter.
    page.go("tasks", "Tasks")
    page.script("const type = document.querySelectorAll('select')[0]; type.value = 'rare'; type.dispatchEvent(new Event('change'))")
    page.until("125 are rare", lambda: page.text("#total") == "125 tasks match")
    page.click('a[rel="next"]')
    page.until("the second page", lambda: page.text("#page") == "51–100 of 125")
    tag = page.texts("tr[data-id] .tag")[0]
    page.click("tr[data-id] .tag")
    lot = tag.split()[-1]
    fitting = {task["id"] for task in tasks if task["tags"]["lot"] == lot}
    page.until("those of the lot", lambda: page.text("#total") == f"{len(fitting)} tasks match")
    assert set(page.rows()) <= fitting

    wanted = tasks[1234]["id"]
    page.go("tasks", "Tasks")
    page.wait_for("#search").send_keys(wanted[:13])
    page.until("the one task", lambda: page.rows() == [wanted])
    assert page.browser.current_url.endswith(f"#/tasks?q={wanted[:13]}")
    page.browser.refresh()
    page.until("the same after a reload", lambda: page.rows() == [wanted])
    page.browser.back()
    page.until("the lot again", lambda: page.text("#total") == f"{len(fitting)} tasks match")

    page.go("tasks?q=nothing-is-called-this", "Tasks")
    page.wait_for(".empty", "No tasks match")


def test_all_matching_tasks_are_retried_and_cancelled(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    queue.submit_many([{"task_type": "bad", "input": number} for number in range(6)] + [{"task_type": "other"}])
    queue.work({"bad": queue.program("bad.sh", "exit 65"), "other": queue.program("other.sh", "exit 65")})
    page.open(serve(queue, "--allow-actions"), "tasks?status=failed&type=bad")
    page.until("six have failed", lambda: page.text("#total") == "6 tasks match")

    page.click(".bulk button", "retry all 6")
    page.click("dialog .main", "retry 6 tasks")
    page.wait_for(".note", "6 tasks changed")
    page.until("none is left", lambda: page.text("#total") == "0 tasks match")
    assert queue.counts() == {"pending": 6, "failed": 1}

    page.go("tasks?status=due&type=bad", "Tasks")
    page.until("six are due", lambda: page.text("#total") == "6 tasks match")
    page.click(".bulk button", "cancel all 6")
    page.click("dialog button", "Go back")
    page.until("the dialog closes", lambda: not page.all("dialog"))
    assert queue.counts() == {"pending": 6, "failed": 1}
    page.click(".bulk button", "cancel all 6")
    page.click("dialog .main", "cancel 6 tasks")
    until("all six are cancelled", lambda: queue.counts() == {"cancelled": 6, "failed": 1})
    page.until("none is left", lambda: page.text("#total") == "0 tasks match")


def test_a_task_is_found_by_its_key_its_tag_and_its_input(folder_queue: Queue, serve: Serve, page: Page) -> None:
    wanted = folder_queue.submit("resize", {"url": "harbour.raw"}, "--key", "img-1", "--tag", "team=photos")
    other = folder_queue.submit("resize", {"url": "castle.raw"}, "--key", "img-2", "--tag", "team=films")
    page.open(serve(folder_queue), "tasks")
    page.until("both are loaded", lambda: set(page.rows()) == {wanted, other})
    for words in ("img-1", "team=photos", "team:pho", "HARBOUR"):
        page.wait_for("#search").send_keys(Keys.CONTROL + "a", Keys.DELETE)
        page.until("both again", lambda: len(page.rows()) == 2)
        page.wait_for("#search").send_keys(words)
        page.until(f"the one with {words}", lambda: page.rows() == [wanted])
    page.wait_for("#search").send_keys(Keys.CONTROL + "a", Keys.DELETE)
    page.wait_for("#search").send_keys('"url":"castle')
    page.until("the other one", lambda: page.rows() == [other])


def test_the_search_field_follows_the_address(folder_queue: Queue, serve: Serve, page: Page) -> None:
    task = folder_queue.submit("resize")
    page.open(serve(folder_queue), "tasks")
    page.until("the task", lambda: page.rows() == [task])

    def typed() -> str:
        return page.script("return document.getElementById('search').value")

    words = "a-long-word-that-is-typed-at-once"
    page.wait_for("#search").send_keys(words)
    page.until("the address has it", lambda: page.browser.current_url.endswith(f"q={words}"))
    assert typed() == words, "text being typed is kept"
    # The field keeps the focus, as it does when a link or the back button is used.
    page.script("location.hash = '#/tasks'")
    page.until("the list of the new address", lambda: page.rows() == [task])
    page.until("the field is empty", lambda: typed() == "")
    page.browser.back()
    page.until("the field has the words of the address", lambda: typed() == words)
