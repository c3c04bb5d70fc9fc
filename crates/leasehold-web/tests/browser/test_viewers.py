"""Many may look; the store does not notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from page import Page
from programs import Dashboard, Queue, until

Serve = Callable[..., Dashboard]

VIEWERS = 10
# So many samples are waited for: their number, not a time, says when there is enough to compare.
SAMPLES = 3


def spent(dashboard: Dashboard) -> tuple[int, int]:
    """How often the store was sampled, and what that took."""
    overview = dashboard.overview()
    return len(overview["charts"]["depth"]), overview["sample"]["requests"]


# On a bucket, where a request costs money. A unit test of the sampler does the same for a folder.
@pytest.mark.parametrize("queue", ["s3"], indirect=True)
def test_ten_viewers_cost_the_store_no_more_than_one(queue: Queue, serve: Serve, page: Page) -> None:
    tasks = [queue.submit("report") for _ in range(3)]
    crowded, lonely = serve(queue), serve(queue)
    crowded.has_read(len(tasks))
    lonely.has_read(len(tasks))

    # Ten windows of a real browser on one, the test itself is the only viewer of the other.
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
        (many, told), (few, alone) = since(crowded), since(lonely)
        # They do not sample at the same instants, so what one sample takes is compared, and how many there were. One that
        # is under way has been paid for in part.
        each = alone / few
        assert abs(many - few) <= 1
        assert told <= (many + 1) * each + 1, f"{VIEWERS} viewers: {told} requests for {many} samples; one: {alone} for {few}"
    finally:
        for window in windows:
            page.browser.switch_to.window(window)
            page.browser.close()
        page.browser.switch_to.window(first)
