"""Page object over a real browser. Waits for conditions, never for a fixed time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from programs import TIMEOUT_SECS, Dashboard

DESKTOP = (1440, 900)
TABLET = (768, 1024)
PHONE = (360, 740)

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
]  # fmt: skip


def open_browser(chromium: str, driver: str, profile: str) -> Chrome:
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(driver))


class Page:
    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    # ---- viewport and theme ----

    def size(self, width: int, height: int, *, scale: float = 1) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, dashboard: Dashboard, place: str = "overview") -> None:
        token = f"#token={dashboard.token}" if dashboard.token else ""
        if token:
            self.browser.get(dashboard.url + token)
            self.wait_for("main .view")
        # From another document, so that the page reloads even if only the fragment differs.
        self.browser.get("about:blank")
        self.browser.get(f"{dashboard.url}#/{place}")
        self.wait_for("main .view h1")

    def go(self, place: str, title: str) -> None:
        """Goes to another view without reloading the page."""
        self.browser.execute_script("location.hash = arguments[0]", f"#/{place}")
        self.until(f"the view {title}", lambda: " ".join(self.text("main h1").split()) == title)

    # ---- reading ----

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """Waits for a condition. The page may redraw at any time, so stale elements are retried."""

        def patient(_: Chrome) -> Any:
            try:
                return look()
            except (StaleElementReferenceException, IndexError):
                return None

        return WebDriverWait(self.browser, TIMEOUT_SECS, poll_frequency=0.05).until(patient, what)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def wait_for(self, selector: str, text: str | None = None) -> WebElement:
        """Waits for the first visible element that matches, and returns it."""

        def look() -> WebElement | None:
            return next((one for one in self.all(selector) if one.is_displayed() and (text is None or text in one.text)), None)

        return self.until(f"{selector} {text or ''}", look)

    def text(self, selector: str) -> str:
        found = self.all(selector)
        return found[0].text if found else ""

    def texts(self, selector: str) -> list[str]:
        """Texts of all matching elements, read atomically."""
        return self.script("return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", selector)

    def tile(self, status: str) -> str:
        return self.text(f'[data-count="{status}"] .tile-value')

    def rows(self) -> list[str]:
        return self.script("return [...document.querySelectorAll('tr[data-id]')].map((row) => row.dataset.id)")

    def script(self, text: str, *args: Any) -> Any:
        return self.browser.execute_script(text, *args)

    # ---- actions ----

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks a visible element; retries if the page has redrawn it in between."""

        def press() -> bool:
            self.wait_for(selector, text).click()
            return True

        self.until(f"a click on {selector} {text or ''}", press)

    def press(self, *keys: str) -> None:
        """Presses keys one after the other."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def tab_to(self, selector: str, most: int = 60) -> None:
        """Moves the focus with the tab key until a matching element has it."""
        for _ in range(most):
            if self.script("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"pressing tab {most} times did not reach {selector}")

    # ---- problems ----

    def is_wider_than_the_window(self) -> bool:
        return self.script("return document.documentElement.scrollWidth > document.documentElement.clientWidth")

    def console_errors(self) -> list[str]:
        """Console messages since the last call."""
        return [f"{entry['level']} {entry['message']}" for entry in self.browser.get_log("browser")]
