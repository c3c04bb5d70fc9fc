"""The task view: reading, retrying, cancelling; hostile content is shown as text."""

from __future__ import annotations

from collections.abc import Callable

from page import Page
from programs import Dashboard, Queue, until

Serve = Callable[..., Dashboard]

HOSTILE = """"><script>window.ran = 'script'</script><img src=x onerror="window.ran = 'image'">'`{{1+1}}</pre></title>"""


def test_a_failed_task_is_read_retried_and_seen_to_complete(queue: Queue, serve: Serve, page: Page) -> None:
    mended = queue.folder / "mended"
    fails = queue.program("fails.sh", f"""test -e {mended} && echo '{{"found": true}}' && exit 0
printf 'Traceback:\\n  line 17, in load\\nOSError: no such photo\\n' >&2; exit 65""")  # fmt: skip
    task = queue.submit("resize", {"url": "a.png"}, "--tag", "team=photos")
    queue.work({"resize": fails})
    assert queue.get(task)["status"] == "failed"

    page.open(serve(queue, "--allow-actions"))
    page.click(".failure", "resize")
    page.wait_for("h1 .pill", "failed")
    assert "line 17, in load\nOSError: no such photo" in page.wait_for(".card-error pre").text
    assert page.texts(".events b") == ["submit", "claim", "fail"]
    assert page.wait_for(".strip .run.tone-failed")
    assert '"url": "a.png"' in page.wait_for(".card-input pre").text
    assert page.wait_for(".card-facts .tag", "photos")

    mended.touch()
    queue.worker("worker-2", {"resize": fails})
    page.click(".heading button", "Retry")
    page.click("dialog .main", "Retry")
    page.wait_for("h1 .pill", "completed")
    assert '"found": true' in page.wait_for(".card-output pre").text
    page.until("the whole history", lambda: page.texts(".events b") == ["submit", "claim", "fail", "retry", "claim", "complete"])
    assert page.wait_for(".strip .run.tone-completed")
    page.until("it was announced", lambda: "completed" in page.script("return document.getElementById('spoken').textContent"))
    assert queue.get(task)["status"] == "completed"
    assert not page.all(".card-error") or queue.get(task).get("error")


def test_a_pending_task_is_cancelled(queue: Queue, serve: Serve, page: Page) -> None:
    task = queue.submit("report", None, "--delay", 3600)
    page.open(serve(queue, "--allow-actions"), f"tasks/{task}")
    page.wait_for("h1 .pill", "scheduled")
    page.click(".heading button", "Cancel")
    page.click("dialog .main", "Cancel")
    page.wait_for("h1 .pill", "cancelled")
    assert queue.get(task)["status"] == "cancelled"
    page.until("it can be retried now", lambda: page.texts(".heading button.button") == ["Retry"])
    page.click("a.back")
    page.until("the list has it too", lambda: page.texts("tr[data-id] .pill") == ["cancelled"])


def test_a_running_task_that_is_cancelled_is_one_attempt_and_still_running(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    task = queue.submit("slow")
    # No renewal reads the cancellation during the test.
    queue.worker("worker-1", {"slow": queue.hanging_program()}, "--lease-secs", 600)
    until("it runs", lambda: queue.get(task)["status"] == "running")
    page.open(serve(queue, "--allow-actions"), f"tasks/{task}")
    page.click(".heading button", "Cancel")
    page.click("dialog .main", "Cancel")
    page.wait_for(".note", "Cancel requested")
    page.until("the history has it", lambda: page.texts(".events b") == ["submit", "claim", "cancel requested"])
    page.wait_for("h1 .pill", "running")
    page.wait_for(".banner", "Cancel requested")
    assert page.script("return document.querySelectorAll('.strip rect.run').length") == 1
    assert page.script("return [...document.querySelectorAll('.strip .above')].map((one) => one.textContent)") == ["attempt 1"]
    assert "Task is cancelled" not in page.text("body")


def test_progress_is_a_bar_where_it_has_a_percentage(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    task = queue.submit("slow")
    # No renewal overwrites the record during the test.
    queue.worker("worker-1", {"slow": queue.hanging_program()}, "--lease-secs", 600)
    until("it runs", lambda: queue.get(task)["status"] == "running")
    queue.rewrite(task, progress={"percent": 40, "stage": "crop"})
    page.open(serve(queue), f"tasks/{task}")
    shown = page.wait_for(".card-progress", "40 %").text
    assert page.script("return document.querySelector('.card-progress progress').position") == 0.4
    assert "percent" not in shown and '"stage": "crop"' in shown
    # Other kinds of progress are shown as reported.
    queue.rewrite(task, progress="cropping the second of three")
    page.wait_for(".card-progress p", "cropping the second of three")
    queue.rewrite(task, progress={"frames": [1, 2]})
    page.wait_for(".card-progress pre", '"frames"')
    assert not page.all(".card-progress progress")


def test_a_scheduled_task_is_run_now(folder_queue: Queue, serve: Serve, page: Page) -> None:
    task = folder_queue.submit("report", None, "--delay", 3600)
    page.open(serve(folder_queue, "--allow-actions"), f"tasks/{task}")
    page.click(".heading button", "Run now")
    page.click("dialog .main", "Run now")
    page.wait_for("h1 .pill", "due")
    folder_queue.work({"report": folder_queue.program("done.sh", "echo '{}'")})
    page.wait_for("h1 .pill", "completed")


def test_a_task_that_holds_html_and_script_shows_as_text(folder_queue: Queue, serve: Serve, page: Page) -> None:
    queue = folder_queue
    # Type names can contain only letters, digits, `-`, `_` and `.`; all other fields can contain anything.
    task = queue.submit("hostile", {HOSTILE: [HOSTILE]}, "--tag", f"<b>key</b>={HOSTILE[:200]}", "--key", HOSTILE, "--max-attempts", 1)
    (queue.folder / "said.txt").write_text(HOSTILE)
    queue.work({"hostile": queue.program("bad.sh", f"cat {queue.folder}/said.txt >&2; exit 65")})
    assert HOSTILE in queue.get(task)["error"]
    done = queue.submit("hostile", HOSTILE)
    (queue.folder / "output.json").write_text('{"html": "<script>window.ran = 1</script>"}')
    queue.work({"hostile": queue.program("good.sh", f"cat {queue.folder}/output.json")})

    page.open(serve(queue, "--allow-actions"))
    page.wait_for(".failure .error-line", "<script>window.ran")
    page.go("tasks", "Tasks")
    page.until("both tasks", lambda: len(page.rows()) == 2)
    page.wait_for(".tag", "<b>key</b>")
    page.click(".tag")
    page.until("found by its tag", lambda: page.rows() == [task])
    page.go(f"tasks/{task}", "hostile failed")
    assert HOSTILE in page.wait_for(".card-error pre").text
    assert "onerror=" in page.wait_for(".card-input pre").text
    page.click(".record summary")
    page.wait_for(".record pre", "<script>")
    page.wait_for(".card-facts", HOSTILE[:40])
    page.go(f"tasks/{done}", "hostile completed")
    page.wait_for(".card-output pre", "<script>window.ran = 1</script>")
    page.go(f"tasks?q={'%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'}", "Tasks")
    page.wait_for(".empty", "No tasks match")

    assert page.script("return window.ran") is None
    assert page.script("return document.querySelectorAll('main script, main img, main b b, [onerror], [onclick]').length") == 0
    assert page.script("return document.scripts.length") == 2


def test_numbers_are_shown_as_they_were_written(folder_queue: Queue, serve: Serve, page: Page) -> None:
    task = folder_queue.submit("sum", {"large": 12345678901234567890, "small": 0.1, "text": "12345678901234567890"})
    page.open(serve(folder_queue), f"tasks/{task}")
    assert '"large": 12345678901234567890' in page.wait_for(".card-input pre").text
    assert '"small": 0.1' in page.wait_for(".card-input pre").text


def test_a_missing_task_is_reported(folder_queue: Queue, serve: Serve, page: Page) -> None:
    page.open(serve(folder_queue))
    page.script("location.hash = '#/tasks/3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3'")
    page.wait_for(".empty", "Task not found")
    until("the console has the response", lambda: any("404" in one for one in page.console_errors()))
    page.go("overview", "Overview")
    page.console_errors()


def test_opened_details_stay_open(folder_queue: Queue, serve: Serve, page: Page) -> None:
    task = folder_queue.submit("report", {"pages": 3}, "--delay", 3600)
    page.open(serve(folder_queue), f"tasks/{task}")
    page.click(".record summary")
    page.wait_for(".record pre")
    page.script("window.kept = document.querySelector('.record pre'); getSelection().selectAllChildren(window.kept)")
    folder_queue.run("cancel", task)
    page.wait_for("h1 .pill", "cancelled")
    assert page.script("return window.kept.isConnected && document.querySelector('.record').open")
    assert "pages" in page.script("return String(getSelection())")
