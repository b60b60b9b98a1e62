"""A page on paper: everything unfolded, no dark ground whatever the screen has, and nothing beyond the right margin."""

import pytest

from tests.page.test_in_a_browser import NAMES
from tests.sampling import sampled

pytestmark = pytest.mark.browser
# A4 less margins of 1 cm, in CSS pixels.
WIDTH = 718
BEYOND = """
[...document.querySelectorAll("body *")]
  .filter((one) => !one.closest(".skip, #said, .defs, dialog, svg *"))
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => `${one.tagName}.${one.className.baseVal ?? one.className}`)
"""
FOLDED = "details:not([open])"


@sampled("name", NAMES, push=["wrong"])
def test_on_paper_all_is_unfolded_light_and_within_the_margins(open_page, name):
    from playwright.sync_api import expect

    with open_page(name, width=WIDTH, scheme="dark") as page:
        folded = page.locator(FOLDED).count()
        page.emulate_media(media="print", color_scheme="dark")
        expect(page.locator(FOLDED)).to_have_count(0)
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
        assert page.evaluate(BEYOND) == []
        assert not page.locator("#scheme").is_visible()
        page.emulate_media(media="screen")
        expect(page.locator(FOLDED)).to_have_count(folded)
        assert page.pdf().startswith(b"%PDF")
