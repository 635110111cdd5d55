"""Debian's chromium for tests of HTML pages, and the addresses of a page of the atlas."""

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
# no network: a page must need none, and chromium's own services would wait for it
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage"),
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Enter a context with a browser; the test is skipped where playwright or chromium is missing."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed: a page of the atlas is not opened in a browser")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: a page of the atlas is not opened in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


def wait_for_address(page: Any, text: str) -> None:
    """Wait until the page has an address and shows it.

    text: "#section" is the whole address up to its settings, "#section?setting=1" all of it, "setting=1" a part.
    """
    page.wait_for_function(
        """(text) => {
            const address = location.hash;
            if (document.body.dataset.address !== address) return false;
            if (!text.startsWith("#")) return address.includes(text);
            return text === (text.includes("?") ? address : address.split("?")[0]);
        }""",
        arg=text,
    )


def visit(page: Any, address: str) -> None:
    """Go to the part ``#address`` of the page that is open."""
    page.goto(f"{page.url.partition('#')[0]}#{address}")
    wait_for_address(page, f"#{address.partition('?')[0]}")
