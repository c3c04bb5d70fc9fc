"""Access control, enforced by the server and not by the page."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from page import Page
from programs import Dashboard, Queue

Serve = Callable[..., Dashboard]

TOKEN = "correct-horse-battery-staple"
DATA = ["/api/overview", "/api/tasks", "/api/workers", "/api/shards", "/api/artifacts", "/api/outposts", "/api/settings", "/metrics"]


def raw(dashboard: Dashboard, method: str, path: str, headers: dict[str, str]) -> int:
    """Sends exactly these headers and returns the status of the response."""
    at = urlsplit(dashboard.url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_missing_or_wrong_token_gets_no_data(folder_queue: Queue, serve: Serve) -> None:
    task = folder_queue.submit("secret")
    guarded = serve(folder_queue, "--allow-actions", token=TOKEN)
    stranger = Dashboard(guarded.url)
    for path in [*DATA, f"/api/tasks/{task}"]:
        assert stranger.ask(path)[0] == 401, path
        for wrong in ("wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
            assert stranger.ask(path, token=wrong)[0] == 401, path
        assert guarded.ask(path)[0] == 200, path
    for action in ("cancel", "retry", "run_now"):
        assert stranger.ask(f"/api/tasks/{task}/{action}", method="POST", headers={"x-leasehold": "1"})[0] == 401
    assert folder_queue.get(task)["status"] == "pending"
    assert stranger.ask("/healthz")[0] == 200
    assert "secret" not in stranger.ask("/")[1]


@pytest.mark.complains("401")
def test_the_page_asks_for_the_token(folder_queue: Queue, serve: Serve, page: Page) -> None:
    task = folder_queue.submit("secret")
    guarded = serve(folder_queue, token=TOKEN)
    page.browser.get(guarded.url)
    page.wait_for("#token").send_keys("wrong\n")
    page.wait_for(".wrong", "Wrong token")
    page.wait_for("#token").send_keys(TOKEN + "\n")
    page.until("what is behind it", lambda: page.tile("due") == "1")

    # A token in the address is used and removed there.
    page.script("sessionStorage.clear()")
    page.browser.get("about:blank")
    page.browser.get(f"{guarded.url}#token={TOKEN}")
    page.until("what is behind it", lambda: page.tile("due") == "1")
    assert TOKEN not in page.browser.current_url
    assert page.script("return document.cookie") == ""
    page.go(f"tasks/{task}", "secret due")

    # The settings do not reveal it either.
    page.go("settings", "Settings")
    page.wait_for("tbody tr", "dashboard.token")
    assert TOKEN not in page.browser.page_source


@pytest.mark.complains("401")
def test_a_token_with_special_characters_is_not_decoded(folder_queue: Queue, serve: Serve, page: Page) -> None:
    folder_queue.submit("secret")
    guarded = serve(folder_queue, token="s3cret%zztoken")
    page.browser.get(f"{guarded.url}#token=s3cret%zztoken")
    page.until("what is behind it", lambda: page.tile("due") == "1")
    assert "zztoken" not in page.browser.current_url

    # Characters that no token can have, as from a paste, are dropped.
    page.script("sessionStorage.clear()")
    page.browser.get("about:blank")
    page.browser.get(guarded.url)
    page.wait_for("#token").send_keys("\u200bs3cret%zztoken\n")
    page.until("what is behind it", lambda: page.tile("due") == "1")


def test_a_read_only_dashboard_rejects_actions(folder_queue: Queue, serve: Serve, page: Page) -> None:
    task = folder_queue.submit("report")
    dashboard = serve(folder_queue)
    for path in (f"{task}/cancel", f"{task}/retry", f"{task}/run_now", "cancel", "retry"):
        body = json.dumps({"status": "pending"}).encode()
        headers = {"x-leasehold": "1", "content-type": "application/json"}
        assert dashboard.ask(f"/api/tasks/{path}", method="POST", headers=headers, body=body)[0] == 403, path
    assert folder_queue.get(task)["status"] == "pending"
    page.open(dashboard, f"tasks/{task}")
    page.wait_for(".heading .aside", "read-only")
    assert not page.all(".heading button.button")
    page.go("tasks?status=due", "Tasks")
    page.until("the task", lambda: page.rows() == [task])
    assert not page.all(".bulk")


def test_posts_from_other_sites_are_rejected(folder_queue: Queue, serve: Serve) -> None:
    task = folder_queue.submit("report")
    dashboard = serve(folder_queue, "--allow-actions")
    host = urlsplit(dashboard.url).netloc
    path = f"/api/tasks/{task}/cancel"
    good = {"host": host, "x-leasehold": "1", "content-length": "0"}
    for wrong in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert raw(dashboard, "POST", path, {**good, **wrong}) == 403, wrong
    assert raw(dashboard, "POST", path, {"host": host, "content-length": "0"}) == 403, "without the custom header"
    assert raw(dashboard, "GET", path, {"host": host}) == 405
    assert folder_queue.get(task)["status"] == "pending"
    assert raw(dashboard, "POST", path, {**good, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}) == 200
    assert folder_queue.get(task)["status"] == "cancelled"


def test_a_foreign_name_that_resolves_to_this_machine_is_rejected(folder_queue: Queue, serve: Serve) -> None:
    dashboard = serve(folder_queue)
    port = urlsplit(dashboard.url).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert raw(dashboard, "GET", "/api/overview", {"host": host}) == 200, host
    for host in ("evil.example", f"evil.example:{port}", f"localhost.evil.example:{port}"):
        assert raw(dashboard, "GET", "/api/overview", {"host": host}) == 403, host


def test_every_response_has_the_security_headers(folder_queue: Queue, serve: Serve) -> None:
    dashboard = serve(folder_queue)
    at = urlsplit(dashboard.url)
    for path in ("/", "/static/app.js", "/api/overview", "/api/nothing", "/metrics"):
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
        connection.request("GET", path)
        headers = connection.getresponse().headers
        connection.close()
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy, path
        assert "frame-ancestors 'none'" in policy and "form-action 'none'" in policy, path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["referrer-policy"] == "no-referrer", path
        assert headers["cache-control"] == "no-store", path


def test_listening_for_other_machines_requires_a_token(folder_queue: Queue) -> None:
    process = folder_queue.start("dashboard", "--host", "0.0.0.0", "--port", 0)
    assert process.wait(30) == 64
    assert "token" in folder_queue.log(0).read_text()
