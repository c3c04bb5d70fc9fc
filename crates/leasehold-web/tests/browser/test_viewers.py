"""The number of viewers does not change the number of requests to the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from page import Page
from programs import Dashboard, Queue, until

Serve = Callable[..., Dashboard]

VIEWERS = 10
# Number of samples to wait for: enough to compare.
SAMPLES = 3


def spent(dashboard: Dashboard) -> tuple[int, int]:
    """Number of samples of the store, and of their requests."""
    overview = dashboard.overview()
    return len(overview["charts"]["depth"]), overview["sample"]["requests"]


# On a bucket, where requests cost money. A unit test of the sampler covers folders.
@pytest.mark.parametrize("queue", ["s3"], indirect=True)
def test_ten_viewers_cost_the_store_no_more_than_one(queue: Queue, serve: Serve, page: Page) -> None:
    tasks = [queue.submit("report") for _ in range(3)]
    crowded, lonely = serve(queue), serve(queue)
    crowded.has_read(len(tasks))
    lonely.has_read(len(tasks))

    # Ten browser windows view one dashboard; the test itself is the only viewer of the other.
    first = page.browser.current_window_handle
    windows = []
    for number in range(VIEWERS):
        page.browser.switch_to.new_window("window")
        windows.append(page.browser.current_window_handle)
        page.open(crowded, ["overview", "tasks", f"tasks?q={tasks[0]}"][number % 3])
        assert page.script("return document.visibilityState") == "visible"
    try:
        before = {board.url: spent(board) for board in (crowded, lonely)}

        def since(board: Dashboard) -> tuple[int, int]:
            then, now = before[board.url], spent(board)
            return now[0] - then[0], now[1] - then[1]

        until("both have sampled", lambda: all(since(board)[0] >= SAMPLES for board in (crowded, lonely)))
        (many, crowded_requests), (few, lonely_requests) = since(crowded), since(lonely)
        # They do not sample at the same time, so this compares the requests per sample and the number of samples. A sample
        # in progress is partly counted.
        each = lonely_requests / few
        assert abs(many - few) <= 1
        assert crowded_requests <= (many + 1) * each + 1, (
            f"{VIEWERS} viewers: {crowded_requests} requests for {many} samples; one: {lonely_requests} for {few}"
        )
    finally:
        for window in windows:
            page.browser.switch_to.window(window)
            page.browser.close()
        page.browser.switch_to.window(first)
