"""A real Chromium without a window, for tests of the page."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

MISSING = (
    None
    if CHROMIUM and DRIVER
    else "no Chromium with its driver on PATH: install them (on Debian: apt install chromium chromium-driver)"
)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)

PATIENCE = 60
"""Seconds."""


class Browser:
    """One window. `find` and `text` take CSS selectors."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """The size of the window, and which colours the user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferred = {
            "prefers-color-scheme": "dark" if dark else "light",
            # Whatever moves by itself is missed by a click.
            "prefers-reduced-motion": "reduce",
        }
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        """The first element, which has to be there."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[WebElement]:
        """All elements."""
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """The text of the first element, shown or not."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def run(self, script: str, *arguments: object) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds; returns what it was."""
        return WebDriverWait(self.driver, PATIENCE, 0.05, ignored_exceptions=[Exception]).until(lambda _: condition())

    def errors(self) -> list[str]:
        """What the browser complained about since the last time, but for answers with an error status."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["source"] != "network" and entry["level"] == "SEVERE"]

    def picture(self, file: Path, selector: str | None = None) -> None:
        """Save a PNG of what is seen, or of one element and a margin around it."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": selector is not None}
        if selector is not None:
            box = self.run(
                "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
                "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}",
                selector,
            )
            margin = 12
            options["clip"] = {
                "x": max(0, box["x"] - margin),
                "y": max(0, box["y"] - margin),
                "width": box["width"] + 2 * margin,
                "height": box["height"] + 2 * margin,
                "scale": 1,
            }
        file.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, with nothing remembered."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        options = ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options=options, service=Service(DRIVER))
        try:
            started = Browser(driver)
            started.look()
            yield started
        finally:
            driver.quit()
