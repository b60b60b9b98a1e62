"""A browser for all tests of this folder, and a folder with every page."""

import pytest

from tests.page.browser import executable, opened, started
from tests.page.made import pages


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """The file of each page, by its name."""
    folder = tmp_path_factory.mktemp("pages")
    made = pages()
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page)
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture(scope="session")
def browser():
    pytest.importorskip("playwright", reason="needs Playwright: pip install '.[browser]'")
    file = executable()
    if file is None:
        pytest.skip("needs Chromium: apt-get install chromium-headless-shell")
    with started(file) as made:
        yield made


@pytest.fixture
def open_page(browser, files):
    """Opens a page by its name; it leaves nothing said, raised or fetched."""
    return lambda name, **how: opened(browser, files[name], **how)
