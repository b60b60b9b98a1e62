"""Pages in a real browser: opened and clicked at, on paper; nothing is logged, raised or fetched."""

from pathlib import Path

import pytest

from tests.sampling import sampled

pytestmark = pytest.mark.browser
NAMES = ("wrong", "right", "heads-128", "strides", "several")
OVERFLOWING = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SHADE = "getComputedStyle(document.body).backgroundColor"


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


def test_a_link_opens_its_check_the_switch_turns_light_to_dark_and_back_and_a_command_is_copied(
    open_page,
):
    with open_page("several") as page:
        page.locator("section a").first.press("Enter")
        page.locator("details.opened[open]").wait_for()
        assert page.locator("details.opened[open] mark").first.inner_text() == "stride_oh"
        light = page.evaluate(SHADE)
        page.locator("#scheme").click()
        dark = page.evaluate(SHADE)
        page.locator("#scheme").click()
        assert light == page.evaluate(SHADE) != dark
        page.locator("button[data-copy]").first.click()
        page.wait_for_function("document.getElementById('said').textContent === 'Copied'")


FOLDED = "details:not([open])"


@sampled("name", NAMES, push=["wrong"])
def test_on_paper_all_is_unfolded_light_and_within_the_margins(open_page, name):
    from playwright.sync_api import expect

    with open_page(name, width=718, scheme="dark") as page:  # A4 less margins of 1 cm
        folded = page.locator(FOLDED).count()
        page.emulate_media(media="print", color_scheme="dark")
        expect(page.locator(FOLDED)).to_have_count(0)
        assert page.evaluate(SHADE) == "rgb(255, 255, 255)"
        assert page.evaluate(OVERFLOWING) <= 0
        assert not page.locator("#scheme").is_visible()
        page.emulate_media(media="screen")
        expect(page.locator(FOLDED)).to_have_count(folded)
        assert page.pdf().startswith(b"%PDF")


OPENED = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@sampled("name", NAMES, push=[])
def test_no_page_keeps_anything_from_assistive_techniques(open_page, name):
    axe = pytest.importorskip(
        "axe_playwright_python", reason="needs axe-core: pip install '.[validator]'"
    )
    program = (Path(axe.__file__).parent / "axe.min.js").read_text()
    for scheme in ("light", "dark"):
        with open_page(name, scheme=scheme) as page:
            page.evaluate(OPENED)
            page.wait_for_timeout(500)
            page.evaluate(program)
            found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            wrong = [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
            assert wrong == []
