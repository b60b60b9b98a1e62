"""The console blocks of README.md and docs/*.md: read, run in a fresh folder, compared, and written anew.

`python -m tests.docs.examples --write [PAGE ...]` runs the blocks of these pages (default: all, without a GPU all that
need none) and puts today's output into them. A comment on the line before a block says when it runs: `<!-- nightly -->`
for one that takes long, `<!-- gpu -->` for one that needs a GPU. A line `...` stands for lines that are left out.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LEFT_OUT = "..."
COLUMNS = "92"
_COPIED, _LINKED = ("examples", "kernels"), ("Makefile", "docs", "pyproject.toml", "tests")


@dataclass(frozen=True)
class Command:
    """A line that begins with `$ `, and the lines that the page shows below it."""

    words: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fence of commands on a page."""

    page: Path
    lines: tuple[int, int]
    """Of the page, the fences left out; the first is 0."""
    mark: str
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        """As a test is named: the page and the first command."""
        return f"{self.page.stem}: {self.commands[0].words[:50]}"


def blocks(page: Path) -> list[Block]:
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    found = []
    for before, token in zip([None, *tokens], tokens):  # noqa: B905
        if token.type == "fence" and token.info == "console":
            comment = before.content if before and before.type == "html_block" else ""
            mark = re.match(r"<!-- (nightly|gpu)\b", comment)
            lines = (token.map[0] + 1, token.map[1] - 1)
            found.append(Block(page, lines, mark[1] if mark else "", _commands(token.content)))
    return found


def _commands(content: str) -> tuple[Command, ...]:
    commands: list[tuple[str, list[str]]] = []
    for line in content.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return tuple(Command(words, tuple(shown)) for words, shown in commands)


def outputs(block: Block, folder: Path) -> list[str]:
    """What each command of a block prints to stdout, run one after another in a folder of its own."""
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _LINKED:
        (folder / name).symlink_to(ROOT / name)
    own = ("GRADPROBE", "GITHUB", "PYTEST")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"COLUMNS": COLUMNS, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    env |= {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    how: dict[str, Any] = {"cwd": folder, "env": env, "stdout": subprocess.PIPE}
    started = [_started(command.words, env["PATH"]) for command in block.commands]
    return [
        subprocess.run(words, check=False, encoding="utf-8", **how).stdout for words in started
    ]


def _started(words: str, path: str) -> list[str]:
    """What a shell starts for a command: gradprobe itself where the shell has nothing else to do."""
    script = shutil.which("gradprobe", path=path)
    if script is None or not re.fullmatch(r"gradprobe [-\w ./:=,]*", words):
        return ["bash", "-c", words]
    return [sys.executable, script, *words.split()[1:]]


def differences(command: Command, output: str) -> str:
    """How an output departs from what the page shows, save for what varies; nothing where it does not."""
    whole = steady(output)
    first, *rest = [steady("\n".join(piece)) for piece in _pieces(command.shown)]
    same = whole.startswith(first) if rest else whole == first
    position = len(first)
    for piece in rest[:-1]:
        at = whole.find(piece, position)
        same, position = same and at >= 0, at + len(piece)
    same = same and (not rest or whole[position:].endswith(rest[-1]))
    return "" if same else "\n".join(difflib.ndiff(command.shown, output.splitlines()))


def steady(text: str) -> str:
    """A text without what varies from run to run and from machine to machine, and with one space for all blanks.

    Numbers with a fraction, an exponent or a thousands separator are rounding, seconds, or counts of what rounding
    decides. Whole numbers stay: they are places, lines and sizes.
    """
    text = re.sub(r"\bsha256 [0-9a-f]+", "sha256 #", text)
    text = re.sub(
        r"\d+(?:,\d{3})+|\d*\.\d+(?:e[+-]?\d+)?|\b\d+e[+-]?\d+|\b\d+(?=[x×])", "#", text
    )
    text = re.sub(r"on cpu \(\w+\)", "on cpu (#)", text)
    return " ".join(text.split())


def _pieces(shown: tuple[str, ...]) -> list[list[str]]:
    """The runs of lines between those that are left out; an empty one where a page begins or ends with `...`."""
    pieces: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == LEFT_OUT:
            pieces.append([])
        else:
            pieces[-1].append(line)
    return pieces


def rewritten(command: Command, output: str) -> list[str]:
    """What the page is to show now: the same pieces, each from the line like its first to the line like its last.

    Raises:
        ValueError: a piece begins or ends with a line that did not come; the page is to be changed by hand.
    """
    new, position, lines = output.rstrip("\n").split("\n"), 0, []
    pieces = _pieces(command.shown)
    for number, piece in enumerate(pieces):
        begin = 0 if number == 0 else (_like(piece[0], new, position) if piece else len(new))
        end = len(new) if number == len(pieces) - 1 else begin
        if piece and number < len(pieces) - 1:
            end = _like(piece[-1], new, begin) + 1
        lines += ([LEFT_OUT] if number else []) + new[begin:end]
        position = end
    return lines


def _like(line: str, lines: list[str], begin: int) -> int:
    """The first line from `begin` on that has the words of another, whatever its numbers."""
    words = re.sub(r"\d+", "#", steady(line))
    for number in range(begin, len(lines)):
        if re.sub(r"\d+", "#", steady(lines[number])) == words:
            return number
    raise ValueError(f"no line like {line!r} came")


def write(page: Path) -> None:
    """Puts today's outputs into the blocks of a page, save those of a GPU where there is none."""
    import torch

    lines = page.read_text(encoding="utf-8").split("\n")
    for block in reversed(blocks(page)):
        if block.mark == "gpu" and not torch.cuda.is_available():
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(block.name, file=sys.stderr)
            shown = zip(block.commands, outputs(block, Path(folder)), strict=True)
            new = [
                line
                for command, output in shown
                for line in (f"$ {command.words}", *rewritten(command, output))
            ]
        lines[slice(*block.lines)] = [line.rstrip() for line in new]
    page.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        sys.exit(__doc__)
    for page in [Path(name).resolve() for name in sys.argv[2:]] or PAGES:
        write(page)
