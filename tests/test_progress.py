"""How far a command is: the time that is left, what is written above the bar, and what Ctrl-C leaves."""

import itertools

import pytest

from gradprobe.cli.own_process import ProgressNote, apart
from gradprobe.processes import tell
from gradprobe.render import terminal as progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass as they are told to: `clock(10)`."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_the_time_left_is_that_of_what_is_done_and_counts_down_and_imports_do_not_count(clock):
    with progress.Progress() as tick:
        tick("importing", None)
        clock(100)
        tick("layout 0 of 4", 0.0)
        assert tick.time_left == ""
        clock(20)
        tick("layout 0 of 4, compared", 0.0)
        clock(10)
        tick("layout 1 of 4", 1 / 4)
        assert tick.time_left == "about 1:30 left"
        clock(10)
        assert tick.time_left == "about 1:20 left"
        clock(1000)
        assert tick.time_left == "about 0:00 left"
        tick("layout 4 of 4", 1.0)
        assert tick.time_left == ""


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
        apart(stopped_after, done, target="lazy", isolate=False)
    assert capsys.readouterr().err == said
