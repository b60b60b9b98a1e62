"""What README.md and docs/*.md show is what comes: every console block is run, and its output compared."""

import contextlib
import re
import shlex

import pytest
import typer
from markdown_it import MarkdownIt

from gradprobe.cli import app
from tests.docs.examples import PAGES, Command, blocks, differences, outputs

_MARKS = {
    "nightly": [pytest.mark.nightly],
    "gpu": [pytest.mark.gpu, pytest.mark.nightly],
    "": [],
}
_BLOCKS = [
    pytest.param(block, id=block.name, marks=_MARKS[block.mark])
    for page in PAGES
    for block in blocks(page)
]


@pytest.mark.parametrize("block", _BLOCKS)
def test_a_page_shows_what_comes(block, tmp_path):
    for command, output in zip(block.commands, outputs(block, tmp_path), strict=True):
        assert not (told := differences(command, output)), (
            f"{block.page.name}, $ {command.words}\n{told}"
        )


def test_every_command_with_output_stands_in_a_block_that_is_run():
    for page in PAGES:
        run = {line for block in blocks(page) for line in range(*block.lines)}
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines()):
            assert number in run or not line.lstrip().startswith("$ "), (
                f"{page.name}:{number + 1}"
            )


def _mentioned(page):
    """The gradprobe commands of a page that stand in no block that is run."""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        spans = [inner.content for inner in token.children or [] if inner.type == "code_inline"]
        lines = token.content.splitlines() if token.type == "code_block" else spans
        found = [
            piece
            for line in lines
            for piece in re.findall(r"(?:^|[ ;/])gradprobe ([^;#&]+)", line)
        ]
        yield from (words for words in found if not words.startswith(("-", "@")))


def _parse(words):
    group, context, args = typer.main.get_command(app), None, shlex.split(words)
    while hasattr(group, "resolve_command"):
        context = group.make_context("gradprobe", args, parent=context, allow_extra_args=True)
        _, group, args = group.resolve_command(context, args)
    group.make_context(words, args, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_that_a_page_mentions_has_the_options_that_it_shows(page):
    for words in _mentioned(page):
        with contextlib.suppress(typer.Exit):  # of --help
            _parse(words)


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("a 1.5 s\nb 3", "a 22.75 s\nb 3", True),
        ("heads 1-3 of 4", "heads 1-2 of 4", False),
        ("first\n...\nlast", "first\nbetween\nlast", True),
        ("first\n...\nlast", "first\nlast\nmore", False),
        ("first\n...", "first\nmore", True),
        ("second\n...", "first\nsecond", False),
        ("wrapped at\nanother word", "wrapped\nat another word", True),
    ],
)
def test_outputs_are_compared_but_for_what_varies(shown, output, same):
    assert (not differences(Command("x", tuple(shown.split("\n"))), output)) is same
