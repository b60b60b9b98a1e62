"""Pages in a real browser: opened and clicked at; nothing is logged, raised or fetched."""

import pytest

pytestmark = pytest.mark.browser
NAMES = ("wrong", "right", "heads-128", "strides", "several", "comparison")
OVERFLOWING = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_every_window_and_says_its_verdict_first(open_page, name):
    from playwright.sync_api import expect

    with open_page(name) as page:
        assert page.locator("h1").count() == page.locator("main").count() == 1
        for width in (1280, 400):
            for scheme, other in (("light", "Dark"), ("dark", "Light")):
                page.set_viewport_size({"width": width, "height": 800})
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate(OVERFLOWING) <= 0
                assert page.locator("h1 .verdict").bounding_box()["y"] < 40
                expect(page.locator("#scheme")).to_have_text(other)


def test_a_link_to_a_check_opens_it(open_page):
    with open_page("several") as page:
        page.locator("section a").first.press("Enter")
        page.locator("details.opened[open]").wait_for()
        assert page.locator("details.opened[open] mark").first.inner_text() == "stride_oh"


def test_the_switch_turns_light_to_dark_and_back(open_page):
    with open_page("strides") as page:
        shade = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(shade)
        page.locator("#scheme").click()
        dark = page.evaluate(shade)
        page.locator("#scheme").click()
        assert light == page.evaluate(shade) != dark


def test_a_command_is_copied(open_page):
    with open_page("wrong") as page:
        button = page.locator("button[data-copy]").last
        button.click()
        page.wait_for_function("document.getElementById('said').textContent === 'Copied'")
