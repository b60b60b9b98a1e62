"""Pages in a real browser: opened, clicked and typed at; nothing is logged, raised or fetched."""

import numpy as np
import pytest

from gradprobe.render.notation import value

pytestmark = pytest.mark.browser
NAMES = ("wrong", "evidence", "right", "heads-128", "kernel", "strides", "several", "comparison")
LOOKS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
BOXES = """(kind) => [...document.querySelectorAll(".overview " + kind)]
  .map((one) => one.getBBox()).map((box) => [box.x, box.x + box.width])"""
OVERFLOWING = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_every_window_and_says_its_verdict_first(open_page, name):
    from playwright.sync_api import expect

    with open_page(name) as page:
        assert page.locator("h1").count() == page.locator("main").count() == 1
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(OVERFLOWING) <= 0
            assert page.locator("h1 .verdict").bounding_box()["y"] < 40
            other = "Dark" if scheme == "light" else "Light"
            expect(page.locator("#scheme")).to_have_text(other)


def test_a_wide_table_shows_at_which_edge_it_goes_on_and_its_caption_stands_whole_between(open_page):
    from playwright.sync_api import expect

    with open_page("strides", width=400) as page:
        box = page.locator(".scroll:has(.matrix)")
        fades = {"more-right": (0, 40), "more-left": (40, 0)}
        for place, (edge, (left, right)) in zip(("0", "box.scrollWidth"), fades.items(), strict=True):
            box.evaluate(f"(box) => {{ box.scrollLeft = {place}; }}")
            page.locator(f".{edge}:not(.{'more-left' if left == 0 else 'more-right'}) .matrix").wait_for()
            frame, words = box.bounding_box(), box.locator("caption").bounding_box()
            assert frame["x"] + left - 1 <= words["x"]
            assert words["x"] + words["width"] <= frame["x"] + frame["width"] - right + 1
        page.set_viewport_size({"width": 1280, "height": 800})
        expect(page.locator(".more-left, .more-right")).to_have_count(0)


@pytest.mark.parametrize("name", ["strides", "several"])
def test_a_cell_opens_what_stands_behind_it_and_escape_goes_back(open_page, name):
    with open_page(name) as page:
        cell = page.locator(".matrix .v-mismatch").first
        cell.focus()
        page.keyboard.press("Enter")
        box = page.locator("details.opened[open]")
        box.wait_for()
        assert box.count() == 1
        assert box.get_attribute("id") == cell.get_attribute("href")[1:]
        whole = box.locator(".whole")
        whole.wait_for()
        assert box.locator(".short").count() == 0
        assert whole.locator(".facts dd").first.inner_text() == "delta"
        assert whole.locator("mark").first.inner_text() == "stride_oh"
        assert "stride_doh" in whole.locator(".diff .added").last.inner_text()
        whole.locator(".graph a[aria-label^='delta']").click()
        whole.locator(".head.mismatch").click()
        assert page.locator("#head-dialog td").count() == 1
        page.keyboard.press("Escape")
        # What a link leads to is opened a moment later, and would be opened again behind an Escape.
        page.evaluate(
            "() => { window.went = new Promise((done) => "
            "addEventListener('hashchange', () => setTimeout(done), { once: true })); }"
        )
        cell.press("Enter")
        page.evaluate("window.went")
        box.locator("summary").first.press("Escape")
        assert page.locator("details.opened[open]").count() == 0
        assert (
            page.evaluate("new Set([...document.querySelectorAll('[id]')].map((one) => one.id)).size")
            == page.locator("[id]").count()
        )
        assert page.evaluate("document.activeElement.className").startswith("cell")


def test_a_failing_check_leads_to_its_cause_and_back_to_the_checks(open_page):
    with open_page("several") as page:
        page.locator(".matrix .v-mismatch").first.click()
        page.locator("details.opened[open] a[href^='#cause']").first.click()
        assert page.evaluate("location.hash") == "#cause-1"
        assert page.locator("#cause-1").inner_text().startswith("2 cases")


def test_the_command_is_copied(open_page):
    from playwright.sync_api import expect

    with open_page("strides") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("[data-copy=command]").click()
        expect(page.locator("#said")).not_to_be_empty()
        assert page.evaluate("navigator.clipboard.readText()") == page.locator("#command").inner_text()


@pytest.mark.parametrize("name", ["comparison", "several", "strides"])
def test_no_option_of_a_command_is_broken_at_its_hyphens(open_page, name):
    with open_page(name, width=400) as page:
        options = page.locator("pre .word").filter(has_text="--")
        assert options.count()
        assert page.locator("pre:has-text('gradprobe'):not(:has(.word)):not(.wide):not(.listing)").count() == 0


def test_the_switch_turns_light_to_dark_and_back(open_page):
    with open_page("strides") as page:
        shade = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(shade)
        page.locator("#scheme").click()
        dark = page.evaluate(shade)
        page.locator("#scheme").click()
        assert light == page.evaluate(shade) != dark


def test_a_head_opens_to_its_tiles_in_words_and_escape_gives_the_focus_back(open_page):
    with open_page("wrong") as page:
        page.locator(".overview a[aria-label^='delta, batch 0, head 1']").press("Enter")
        assert page.evaluate("document.activeElement.id") == "map-delta-0-1"
        page.keyboard.press("Enter")
        box = page.locator("#head-dialog")
        assert box.locator("h2").inner_text() == "delta, batch 0, head 1"
        assert box.locator("td").all_inner_texts() == ["≤6e5"]
        page.keyboard.press("Escape")
        assert not box.is_visible()
        assert page.evaluate("document.activeElement.id") == "map-delta-0-1"


def test_a_map_says_what_is_beyond_its_letters(open_page):
    with open_page("evidence") as page:
        page.locator("#map-delta-0-1").click()
        assert page.locator("#head-table td").first.inner_text() == ">4e6"
        assert page.locator("#head-words").inner_text().endswith("(>4e6 is also what is not finite)")
    with open_page("wrong") as page:
        page.locator("#map-delta-0-1").click()
        assert "finite" not in page.locator("#head-words").inner_text()


def test_a_tile_of_a_close_up_opens_to_actual_beside_expected(open_page):
    with open_page("wrong") as page:
        page.locator("#map-delta .large a").first.press("Enter")
        box = page.locator("dialog[open]")
        row, *_ = box.locator("tbody tr").all_inner_texts()
        assert row.split()[:5] == ["0", "0", "3.735", "-2.446", "6.181"]
        page.keyboard.press("Escape")
        assert box.count() == 0


def test_a_tile_of_a_kept_head_opens_to_the_values_of_the_file(open_page, files):
    kept = np.load(files["evidence"].with_name("heads.npz"))
    actual, expected, wrong = (kept[f"delta.0.1.{part}"] for part in ("actual", "expected", "wrong"))
    with open_page("evidence") as page:
        page.locator("#map-delta-0-1").click()
        page.locator("#head-table .tile").nth(3).press("Enter")
        rows = page.locator("#head-values tbody tr").all_inner_texts()
        assert page.locator("#head-values td[class*=t-w]").count() == int(wrong[8:, 16:].sum())
        page.locator("#head-table .tile").first.click()
        above = page.locator("#head-values tbody tr").all_inner_texts()
    assert len(rows) == len(above) == 3 * 8
    for at, row in enumerate(range(8, 16)):
        came, due = actual[row, 16:].astype(float), expected[row, 16:]
        for line, values in zip(rows[3 * at : 3 * at + 3], (came, due, came - due), strict=True):
            name, *told = line.split("\t")
            assert name.startswith(f"row {row} ")
            np.testing.assert_allclose([float(one) for one in told], values, rtol=6e-4)
        assert rows[3 * at].split("\t")[1:] == [value(one) for one in came]
    assert above[9].split("\t")[5] == above[11].split("\t")[5] == "nan"
    assert float(above[10].split("\t")[5]) == pytest.approx(expected[3, 4], rel=6e-4)


def test_names_and_numbers_of_every_head_stand_in_their_places(open_page):
    with open_page("kernel") as page:
        names, cells, numbers = (page.evaluate(BOXES, kind) for kind in (".name", "a rect", "a text"))
        assert max(right for _, right in names) < min(left for left, _ in cells)
        assert len(cells) == len(numbers) == 2 * len(names)
        for (left, right), (first, last) in zip(cells, numbers, strict=True):
            assert left < first < last < right


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_figures_stand_in_their_tiles_and_what_is_right_is_green(open_page, width, scheme):
    from playwright.sync_api import expect

    with open_page("evidence", width=width, scheme=scheme) as page:
        tiles, figures = (
            page.locator("#map-delta-0-1 svg.map " + kind).evaluate_all(
                "(all) => all.map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right])"
            )
            for kind in ("rect", "text")
        )
        assert len(tiles) == len(figures) > 1
        for (left, right), (first, last) in zip(tiles, figures, strict=True):
            assert left < first < last < right
    with open_page("right", width=width, scheme=scheme) as page:
        green = {"light": "rgb(10, 102, 64)", "dark": "rgb(126, 226, 168)"}[scheme]
        expect(page.locator("h1 .match")).to_have_css("color", green)
        assert {*page.locator(".node").evaluate_all("(all) => all.map((one) => getComputedStyle(one).stroke)")} == {
            green
        }


def test_an_intermediate_of_the_dataflow_leads_to_its_maps(open_page):
    with open_page("right") as page:
        page.locator(".graph a[aria-label^='dS']").press("Enter")
        assert page.evaluate("location.hash") == "#map-dS"
        assert page.locator("#map-dS").is_visible()
