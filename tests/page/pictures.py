"""Takes pictures of pages: `python -m tests.page.pictures FOLDER FILE.html...`, wide and narrow, light and dark."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from tests.page.browser import executable, opened, started


def pictures(folder: Path, files: list[Path]) -> None:
    """Four pictures of each page, whole."""
    browser_file = executable()
    if browser_file is None:
        print("no browser is there: no pictures were taken", file=sys.stderr)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with started(browser_file) as browser:
        for file, width, scheme in product(files, (1280, 400), ("light", "dark")):
            with opened(browser, file, width=width, scheme=scheme) as page:
                page.screenshot(path=folder / f"{file.stem}-{width}-{scheme}.png", full_page=True)


if __name__ == "__main__":
    pictures(Path(sys.argv[1]), [Path(file).resolve() for file in sys.argv[2:]])
