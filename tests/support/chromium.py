"""Debian's Chromium for tests that look at the page. Where it is not installed they are skipped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = Path("/usr/bin/chromium")
# What a page could do that it must not is written down before its own scripts run.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""


@contextmanager
def chromium() -> Iterator["object"]:
    """A browser without a window; skips the test where there is none."""
    if not PROGRAM.exists():
        pytest.skip(
            f"the page is looked at in {PROGRAM}, which is not installed (Debian: apt-get install chromium)"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(PROGRAM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


class Watched:
    """A page of the browser, and everything that it should not have done."""

    def __init__(self, browser, **context) -> None:
        self._context = browser.new_context(**context)
        self._context.set_default_timeout(60_000)  # milliseconds; a busy machine is allowed for
        self.page = self._context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.add_init_script(WATCH)
        self.page.on(
            "dialog",
            lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on(
            "console",
            lambda line: line.type == "error" and self.said.append(f"console: {line.text}"),
        )
        self.page.on("request", lambda request: self.requests.append(request.url))

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_) -> None:
        self._context.close()

    def offline(self) -> None:
        self._context.set_offline(True)

    def go(self, address: str, view: str) -> None:
        """Open an address, and wait until that view of it is there."""
        self.page.goto(address)
        self.page.wait_for_selector(f'main[data-view="{view}"]')

    def problems(self) -> list[str]:
        """What it said, and what the content security policy had to forbid."""
        return self.said + self.page.evaluate("window.violations")
