"""Pages in a real browser, without a window: Debian's Chromium or whichever is there, driven by Playwright.

`python -m tests.page.pictures FOLDER` makes the pages that CI keeps, with pictures, wide and narrow, light and dark.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from tests.page.made import pages

NAMES = "chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable"


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES.split())), None)


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
    page.on("request", lambda request: said.append(request.url))
    try:
        page.goto(file.as_uri())
        yield page
        assert {*said} <= {file.as_uri()}
    finally:
        context.close()


def write_pages(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, page in pages().items():
        files[name] = folder.resolve() / f"{name}.html"
        files[name].write_text(page)
    return files


if __name__ == "__main__":
    files, found = write_pages(Path(sys.argv[1])), executable()
    if found is None:
        sys.exit("no browser is there: no pictures were taken")
    with started(found) as made:
        for file, width, scheme in product(files.values(), (1280, 400), ("light", "dark")):
            with opened(made, file, width=width, scheme=scheme) as page:
                picture = file.with_name(f"{file.stem}-{width}-{scheme}.png")
                page.screenshot(path=picture, full_page=True)
