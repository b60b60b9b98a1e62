import ctypes
import os
import sys
import time

from gradprobe.processes import forks
from gradprobe.processes.child import heard_by, tell
from gradprobe.processes.forks import Forks


def in_forks(**work):
    with Forks(2, computes=1) as found:
        for key, each in work.items():
            found.add(key, each)
        return dict(found.answers(time.monotonic() + 60))


def computes_for_ever():
    while True:
        pass


def test_each_piece_of_work_is_answered_and_none_of_them_ends_another(monkeypatch):
    monkeypatch.setattr(forks, "_PATIENCE", 2)
    found = in_forks(
        right=lambda: [1, 2],
        raises=lambda: 1 / 0,
        leaves=sys.exit,
        crashes=lambda: ctypes.string_at(0),
        hangs=lambda: time.sleep(60),
        computes=computes_for_ever,
        large=lambda: "x" * 1_000_000,
    )
    expected = {"right": [1, 2], "large": "x" * 1_000_000}
    assert (
        found == dict.fromkeys(("raises", "leaves", "crashes", "hangs", "computes")) | expected
    )


def test_a_fork_changes_nothing_here_and_says_nothing_to_anybody(capfd):
    said = []

    def loud():
        os.environ["SET_IN_A_FORK"] = "1"
        print("loud")
        tell("loud")
        return os.getpid()

    with heard_by(said.append):
        found = in_forks(loud=loud)
    assert found["loud"] not in (None, os.getpid())
    assert "SET_IN_A_FORK" not in os.environ
    assert (capfd.readouterr().out, said) == ("", [])


def test_what_is_under_way_when_nobody_waits_any_more_is_ended():
    start = time.monotonic()
    with Forks(1) as found:
        found.add("slow", lambda: time.sleep(60))
        assert list(found.answers(time.monotonic() + 0.2)) == []
    assert time.monotonic() - start < 10


def test_forks_answer_beside_more_files_than_select_takes():
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert in_forks(right=lambda: 1) == {"right": 1}
    finally:
        for file in files:
            os.close(file)


def test_beside_jax_nothing_is_forked(monkeypatch):
    assert forks.may_fork()
    monkeypatch.setitem(sys.modules, "jaxlib", sys)
    assert not forks.may_fork()
