"""A real browser, without a window: Debian's Chromium or whichever is there, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


def executable() -> str | None:
    """The first browser on the path."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started(file: str) -> Iterator[Any]:
    """A browser; its profile is gone with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container Chromium's own sandbox may not be made. What is opened is a file of ours.
        browser = playwright.chromium.launch(executable_path=file, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Any, file: Path, *, width: int = 1280, scheme: str = "light"
) -> Iterator[Any]:
    """A page, opened from its file; afterwards nothing was logged, nothing raised, and nothing fetched."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_default_timeout(10_000)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"raised: {error}"))
    page.on(
        "request",
        lambda request: (
            None if request.url == file.as_uri() else said.append(f"fetched {request.url}")
        ),
    )
    try:
        page.goto(file.as_uri())
        yield page
        assert said == []
    finally:
        context.close()
