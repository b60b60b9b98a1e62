"""Draws docs/check-light.svg and docs/check-dark.svg, the picture of the README: what a terminal shows of one real run.

`python docs/picture.py`, in an environment that holds gradprobe. Takes half a minute.
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 92
SED, OLD, NEW = "kernels/triton/lazy.py", "h * stride_doh", "h * stride_qh"
COMMAND = "gradprobe check my_lazy.py:lazy_intermediates --heads 4"

_LIGHT = ["0b0d10", "b3261e", "116329", "7d4e00", "0550ae", "8250df", "0f6a73", "57606a"]
_DARK = ["8b949e", "ff7b72", "56d364", "e3b341", "79c0ff", "d2a8ff", "56d4dd", "e6edf3"]


def _theme(background: str, foreground: str, colours: list[str]) -> TerminalTheme:
    black_to_white = [_rgb(colour) for colour in colours]
    return TerminalTheme(_rgb(background), _rgb(foreground), black_to_white, black_to_white)


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour)
    return red, green, blue


THEMES = {"light": _theme("ffffff", "0b0d10", _LIGHT), "dark": _theme("0d1117", "e6edf3", _DARK)}


def shown() -> str:
    """What the run prints, with its colours as ANSI sequences.

    Raises:
        SystemExit: the run did not end in a mismatch.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = (ROOT / SED).read_text(encoding="utf-8")
        Path(folder, "my_lazy.py").write_text(source.replace(OLD, NEW), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        env |= {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-m", *COMMAND.split()]
        run = subprocess.run(words, check=False, cwd=folder, env=env, stdout=subprocess.PIPE, encoding="utf-8")
    if run.returncode != 1:
        sys.exit(f"{COMMAND} ended with {run.returncode}")
    return run.stdout.rstrip("\n")


def svg(lines: str, theme: TerminalTheme) -> str:
    """A terminal of these lines."""
    text = Text.from_ansi(lines)
    width = max(line.cell_len for line in text.split())  # one line is never wrapped, however narrow the terminal
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, soft_wrap=True, highlight=False)
    return console.export_svg(title=f"$ {COMMAND}", theme=theme)


if __name__ == "__main__":
    lines = shown()
    for name, theme in THEMES.items():
        (ROOT / "docs" / f"check-{name}.svg").write_text(svg(lines, theme) + "\n", encoding="utf-8")
