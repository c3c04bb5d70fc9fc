"""Layout and readability at every width and in both themes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from page import DESKTOP, PHONE, TABLET, Page
from programs import Dashboard, Queue, dashboard, until

# Visible texts with too little contrast to their background. Colours are read back from a canvas, because a computed style
# may use any notation.
UNREADABLE = """
const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
function rgba(colour) {
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
  return {r, g, b, a: a / 255};
}
const over = (top, below) => Object.fromEntries(['r', 'g', 'b'].map((k) => [k, top[k] * top.a + below[k] * (1 - top.a)]).concat([['a', 1]]));
function ground(element) {
  const layers = [];
  for (let one = element; one; one = one.parentElement) {
    const colour = rgba(getComputedStyle(one).backgroundColor);
    layers.push(colour);
    if (colour.a === 1) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), {r: 255, g: 255, b: 255, a: 1});
}
function luminance({r, g, b}) {
  const linear = [r, g, b].map((value) => value / 255).map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
const bad = [];
let seen = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
  if (element.closest('.spoken, .skip, option, title')) continue;
  seen += 1;
  const style = getComputedStyle(element);
  const behind = ground(element);
  const text = over(rgba(element instanceof SVGElement ? style.fill : style.color), behind);
  const [light, dark] = [luminance(text), luminance(behind)].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize);
  const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 600) ? 3 : 4.5;
  const contrast = (light + 0.05) / (dark + 0.05);
  if (contrast < needed) bad.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${contrast.toFixed(2)} (${element.className})`);
}
return [seen, bad];
"""


@dataclass(frozen=True)
class Place:
    """A view, and an element that shows that it is rendered."""

    place: str
    title: str
    sign: str

    def visit(self, page: Page) -> None:
        page.script("location.hash = arguments[0]", f"#/{self.place}")
        page.until(self.title, lambda: page.browser.title.startswith(self.title))
        page.wait_for(self.sign)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> Iterator[tuple[Queue, Dashboard, dict[str, Place]]]:
    """A queue with tasks in every state, with a dashboard over it."""
    folder = tmp_path_factory.mktemp("busy")
    with Queue(str(folder / "data"), folder, env) as queue:
        yield queue, *filled(queue)


def filled(queue: Queue, resized: int = 90, failed: int = 3) -> tuple[Dashboard, dict[str, Place]]:
    worked(queue, resized, failed)
    return shown(queue, resized + failed)


def worked(queue: Queue, resized: int, failed: int) -> None:
    """Runs three workers until all tasks are finished."""
    folder = queue.folder
    (folder / "traceback.txt").write_text(
        'Traceback (most recent call last):\n  File "thumbnail.py", line 42, in main\n    image = load(path)\n'
        '  File "thumbnail.py", line 17, in load\n    raise OSError(f"cannot read {path}")\nOSError: cannot read photos/2026/harbour.raw\n'
    )
    programs = {
        "resize": queue.program("resize.sh", """sleep 0.0$((LEASEHOLD_TASK_EPOCH % 9)); echo '{"written": 3, "bytes": 18211}'"""),
        "thumbnail": queue.program("thumbnail.sh", f"test $LEASEHOLD_TASK_ATTEMPT -lt 2 && echo 'the disk is full' >&2 && exit 75; cat {folder}/traceback.txt >&2; exit 65"),
        "mail": queue.program("mail.sh", "echo '{}'"),
    }
    photo = {"url": "photos/2026/harbour.raw", "sizes": [64, 128, 512], "crop": False, "title": "Harbour at dawn"}
    queue.submit_many([{"task_type": "resize", "input": photo, "tags": {"team": "photos", "customer": "ada"}}] * resized + [{"task_type": "mail"}] * 40)
    queue.submit_many([{"task_type": "thumbnail", "input": photo, "tags": {"team": "photos", "customer": "ada"}, "max_attempts": 2}] * failed)
    leasing = {"LEASEHOLD_SHARD_LEASING_TTL_SECS": "60", "LEASEHOLD_SHARD_LEASING_RENEW_SECS": "10"}
    for name in ("anna", "ben", "carla"):
        queue.worker(name, {**programs, "archive": queue.hanging_program()}, "--shard-leasing", "--concurrency", 12, **leasing)
    until("all is done", lambda: queue.counts() == {"completed": resized + 40, "failed": failed})


def shown(queue: Queue, done: int) -> tuple[Dashboard, dict[str, Place]]:
    """Adds waiting and running tasks, and starts a dashboard."""
    queue.submit_many([{"task_type": "archive"}] * 9 + [{"task_type": "report", "delay_secs": 5_400}] * 12 + [{"task_type": "translate"}] * 17)
    until("some run", lambda: queue.counts()["running"] == 9)
    queue.run("cancel", queue.submit("report", None, "--delay", 60))
    board = dashboard(queue, "--allow-actions", "--provider", "aws")
    board.has_read(done + 79)
    tasks = queue.tasks()
    resized = next(task["id"] for task in tasks if task["task_type"] == "resize")
    failed = next(task["id"] for task in tasks if task["status"] == "failed")
    return board, {
        "overview": Place("overview", "Overview", ".failure"),
        "tasks": Place("tasks", "Tasks", "tr[data-id]"),
        "failed": Place("tasks?status=failed", "Tasks", ".bulk"),
        "task": Place(f"tasks/{failed}", "thumbnail", ".strip .run"),
        "completed": Place(f"tasks/{resized}", "resize", ".card-output"),
        "workers": Place("workers", "Workers", "tbody tr"),
        "shards": Place("shards", "Shards", ".field-cell.is-held"),
        "artifacts": Place("artifacts", "Artifacts", ".empty:not(.soft)"),
        "outposts": Place("outposts", "Outposts", ".empty:not(.soft)"),
        "settings": Place("settings", "Settings", "tbody tr"),
    }  # fmt: skip


Busy = tuple[Queue, Dashboard, dict[str, Place]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, TABLET, DESKTOP, (1920, 1080)], ids=lambda size: f"{size[0]}px")
def test_every_view_fits_and_can_be_read(busy: Busy, page: Page, width: tuple[int, int], scheme: str) -> None:
    _, shown, places = busy
    page.size(*width)
    page.prefer(scheme)
    page.open(shown)
    for name, place in places.items():
        place.visit(page)
        assert not page.is_wider_than_the_window(), f"{name} is wider than the window"
        seen, unreadable = page.script(UNREADABLE)
        assert seen >= 4
        assert unreadable == [], f"{name}, {scheme}"
        # Controls are large enough for a finger, except those in a line of text.
        if width == PHONE:
            small = page.script(
                "return [...document.querySelectorAll('.side nav a, .button, .tool, .chip, select, input, .field-cell')]"
                ".filter((one) => one.checkVisibility()).filter((one) => { const box = one.getBoundingClientRect(); return box.height < 28 || box.width < 28; })"
                ".map((one) => one.outerHTML.slice(0, 120))"
            )
            assert small == [], name


def test_every_control_has_an_accessible_name(busy: Busy, page: Page) -> None:
    _, shown, places = busy
    page.open(shown)
    for name, place in places.items():
        place.visit(page)
        nameless = page.script(
            "return [...document.querySelectorAll('a, button, input, select, [tabindex=\"0\"]')]"
            ".filter((one) => !(one.innerText?.trim() || one.getAttribute('aria-label') || one.labels?.[0]?.textContent.trim() || one.matches('pre')))"
            ".map((one) => one.outerHTML.slice(0, 120))"
        )
        assert nameless == [], name
        assert page.script("return document.querySelectorAll('main h1').length") == 1
        ids = page.script("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids)), name


def test_times_are_relative_with_the_absolute_time_as_tooltip(busy: Busy, page: Page) -> None:
    _, shown, _ = busy
    page.open(shown, "tasks")
    page.wait_for("tr[data-id] time")
    times = page.script("return [...document.querySelectorAll('main time')].map((one) => [one.innerText, one.title])")
    assert times
    for text, title in times:
        assert text == "now" or text.endswith(" ago") or text.startswith("in "), text
        assert title.endswith(" UTC") and "-" in title and ":" in title, title
