"""Children that are forked off a warm process: each with a session of its own, as one that was started anew."""

import signal
import time

from gradprobe.processes import run_each, warm
from gradprobe.processes.warm import warm_process
from tests.processes.test_run_each import DOING, gone


def sleeping(_argument):
    """A warm process that is never ready."""
    time.sleep(70)


def nothing(_argument):
    """What a warm process prepares."""


def test_what_a_child_started_ends_with_it():
    with warm_process("tests.processes.test_warm:nothing", "") as number:
        (ended,) = run_each(DOING, "", [("starting", "sleep", "70")])
        (child, session, started) = ended.result
        assert child == session != number
        assert gone(started)


def test_a_warm_process_that_is_late_is_ended_and_a_fresh_child_takes_its_place(monkeypatch):
    monkeypatch.setattr(warm.child, "START_LIMIT", 0.1)
    with warm_process("tests.processes.test_warm:sleeping", ""):
        process = warm.WARM[-1].process
        (ended,) = run_each(DOING, "", [("twice", 5)])
        assert ended.result[0] == 10
        assert process.wait(10) == -signal.SIGKILL
