"""A browser for all tests of this folder, and a folder with every page."""

import pytest

from tests.page.pictures import executable, opened, started, write_pages


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("pages"))


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
