"""Who sees no picture or uses no mouse reaches all of a page: names, headings, tables, the order of the keyboard."""

from pathlib import Path

import pytest

from tests.page.test_in_a_browser import NAMES
from tests.sampling import sampled

pytestmark = pytest.mark.browser
OPENED = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
# In the order of the document, which is that of reading.
REACHABLE = """
[...document.querySelectorAll("a[href], button, summary, [tabindex='0'], .scroll")]
  .filter((one) => one.checkVisibility() && !one.closest("dialog"))
  .map((one, at) => { one.setAttribute("data-order", at); return one.tabIndex >= 0 && one.tagName !== "DIV"; })
"""
HERE = "Number(document.activeElement.dataset.order ?? -1)"


@sampled("name", NAMES, push=["comparison"])
def test_tab_reaches_every_control_in_the_order_of_reading(open_page, name):
    with open_page(name) as page:
        page.evaluate(OPENED)
        page.wait_for_timeout(300)
        reachable = page.evaluate(REACHABLE)
        every = {at for at, is_control in enumerate(reachable) if is_control}
        reached = list[int]()
        for _ in range(150):
            page.keyboard.press("Tab")
            here = page.evaluate(HERE)
            if here < 0 or here in reached:
                break  # behind the last, it begins anew
            reached.append(here)
        assert reached == sorted(reached)
        assert {at for at in every if at <= reached[-1]} <= {*reached}
        assert len(reached) == 150 or max(every) == reached[-1]


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
            assert [
                (one["id"], [node["html"] for node in one["nodes"]])
                for one in found["violations"]
            ] == []
