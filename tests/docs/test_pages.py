"""The pages as files: links that resolve, a navigation and a site that hold every page, a README that stays short."""

import ast
import os
import re
import subprocess
import sys

import pytest
from lxml import html
from markdown_it import MarkdownIt

from gradprobe.render.alerts import RULES
from tests.docs.examples import ROOT

_DOCS = ROOT / "docs"
_ALL = [*sorted(ROOT.glob("*.md")), *sorted(_DOCS.rglob("*.md"))]
_README_BYTES = 9_000


def _links(page):
    """The relative targets of links and pictures, also those in HTML."""
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        for inner in [token, *(token.children or [])]:
            yield from (inner.attrs[name] for name in ("href", "src") if name in inner.attrs)
            if inner.type.startswith("html"):
                yield from re.findall(r'(?:src|srcset|href)="([^"]+)"', inner.content)


def _anchors(page):
    """The headings of a page, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    for link in _links(page):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{link}: no such file"
            assert anchor in {"", "only-light", "only-dark"} | _anchors(target), (
                f"{link}: no such heading"
            )
            assert _DOCS not in page.parents or _DOCS in target.parents, (
                f"{link}: the site does not hold it"
            )


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", text[text.index("\nnav:") :]))
    named |= {f"decisions/{link}" for link in _links(_DOCS / "decisions" / "index.md")}
    assert named == {str(page.relative_to(_DOCS)) for page in _DOCS.rglob("*.md")}
    assert "\nstrict: true\n" in text


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= _README_BYTES


@pytest.mark.parametrize(
    "word",
    re.findall(r"^readme '?([a-z ]+)'?$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE),
)
def test_ci_runs_the_one_command_of_the_readme_that_has_the_word(word):
    commands = re.findall(
        rf"^    python3 -m venv .*{word}", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(commands) == 1


@pytest.mark.parametrize(
    "script", sorted((_DOCS / "found").glob("*.py")), ids=lambda script: script.stem
)
def test_what_was_found_is_shown_without_gradprobe(script):
    """Each script compiles, and imports nothing of ours; one that the page shows is shown as it is."""
    text = script.read_text(encoding="utf-8")
    imports = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not any("gradprobe" in ast.unparse(node) for node in imports)
    page = (_DOCS / "found.md").read_text(encoding="utf-8")
    shown = [
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if block.split('"""')[1] in text
    ]
    assert all(block == text for block in shown)
    assert f"found/{script.name}" in page


@pytest.mark.nightly
def test_every_rule_has_its_place_in_the_built_pages(tmp_path):
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install '.[docs]'")
    command = [
        sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir",
        str(tmp_path),
    ]  # fmt: skip
    subprocess.run(
        command, cwd=ROOT, env={**os.environ, "DISABLE_MKDOCS_2_WARNING": "true"}, check=True
    )
    page = html.parse(tmp_path / "explain" / "index.html")
    assert {name.lower() for name in RULES} <= {*page.xpath("//@id")}
