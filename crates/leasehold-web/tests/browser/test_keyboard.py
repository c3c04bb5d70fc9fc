"""Use of the page with the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable

from selenium.webdriver.common.keys import Keys

from page import Page
from programs import Dashboard, Queue

Serve = Callable[..., Dashboard]


def test_a_failed_task_is_found_opened_and_retried_with_keys_alone(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    queue.submit_many([{"task_type": "resize", "input": number} for number in range(3)] + [{"task_type": "mail"}])
    queue.work({"resize": queue.program("bad.sh", "echo broken >&2; exit 65"), "mail": queue.program("done.sh", "echo '{}'")})
    page.open(serve(queue, "--allow-actions"))
    page.until("all tasks are loaded", lambda: page.tile("failed") == "3")

    # `/` opens the search from anywhere; Escape leaves the field.
    page.press("/")
    page.until("the field has the focus", lambda: page.script("return document.activeElement.id") == "search")
    page.press("broken")
    page.until("three tasks match", lambda: page.text("#total") == "3 tasks match")
    page.press(Keys.ESCAPE)
    page.until("the field is left", lambda: page.script("return document.activeElement.id") != "search")

    # j and k go through the list, Enter opens.
    page.press("j")
    rows = page.rows()
    focus = "return document.activeElement.closest('tr')?.dataset.id"
    assert page.script(focus) == rows[0]
    page.press("j", "j", "k")
    assert page.script(focus) == rows[1]
    page.press(Keys.ENTER)
    page.wait_for("h1 .pill", "failed")
    assert page.browser.current_url.endswith(rows[1])

    # The button and its dialog.
    page.tab_to(".heading button.button")
    assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.ENTER)
    page.wait_for("dialog[open]")
    page.press(Keys.ESCAPE)
    page.until("the dialog closes", lambda: not page.all("dialog"))
    assert queue.get(rows[1])["status"] == "failed"
    page.tab_to(".heading button.button")
    page.press(Keys.ENTER)
    page.wait_for("dialog[open]")
    page.press(Keys.ENTER)
    page.wait_for("h1 .pill", "due")
    assert queue.get(rows[1])["status"] == "pending"

    # Escape returns to the list with its filter.
    page.press(Keys.ESCAPE)
    page.until("the list", lambda: "q=broken" in page.browser.current_url and page.rows())


def test_every_view_is_reached_with_two_keys(folder_queue: Queue, serve: Serve, page: Page) -> None:
    folder_queue.submit("greet")
    page.open(serve(folder_queue))
    for key, title in {"t": "Tasks", "w": "Workers", "s": "Shards", "e": "Settings", "o": "Overview"}.items():
        page.press("g", key)
        page.until(f"g {key}", lambda title=title: page.text("main h1") == title)
        assert page.script("return document.querySelector('nav [aria-current=page]').innerText.trim()").startswith(title)

    # Arrow keys move through the shard map.
    page.press("g", "s")
    page.wait_for(".field-cell")
    page.tab_to(".field-cell")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert page.script("return document.activeElement.innerText.trim()[0]") == "9"
    page.press(Keys.ENTER)
    page.wait_for(".about", "free")

    # Help, and the theme.
    page.press("?")
    page.wait_for("dialog[open]", "search tasks")
    page.press(Keys.ESCAPE)
    page.until("the help closes", lambda: not page.all("dialog"))
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.script(ground)
    page.press("d", "d")
    page.until("it is dark", lambda: page.script(ground) != light)
    page.browser.refresh()
    page.wait_for("main h1")
    assert page.script(ground) != light
    page.press("d")
    page.until("the theme of the system", lambda: page.script(ground) == light)


def test_the_first_tab_offers_to_skip_to_the_content(folder_queue: Queue, serve: Serve, page: Page) -> None:
    page.open(serve(folder_queue))
    page.press(Keys.TAB)
    assert page.script("return document.activeElement.className") == "skip"
    page.press(Keys.ENTER)
    assert page.script("return document.activeElement.id") == "main"
    assert page.text("main h1") == "Overview"
