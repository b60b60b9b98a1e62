"""How far a command was when Ctrl-C ended it, and what that leaves."""

import itertools
from types import SimpleNamespace

import pytest

from gradprobe.cli.own_process import ProgressNote, apart
from gradprobe.processes import tell


def stopped_after(done):
    for number in itertools.count():
        if number == done:
            raise KeyboardInterrupt
        tell(ProgressNote(f"draw {number + 1} of 5", number + 1, 5, "draws", "none is kept"))


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (0, "gradprobe: interrupted\n  nothing was done yet\n"),
        (2, "gradprobe: interrupted after 2 of 5 draws\n  none is kept\n"),
    ],
)
def test_an_interrupt_says_how_far_the_command_was_and_what_it_leaves(done, said, capsys):
    with pytest.raises(KeyboardInterrupt):
        apart(SimpleNamespace(isolate=False), stopped_after, done)
    assert capsys.readouterr().err == said
