"""Children that are forked off a warm process: each with a session of its own, as one that was started anew."""

from gradprobe.processes import run_each
from gradprobe.processes.warm import warm_process
from tests.processes.test_run_each import DOING, gone


def nothing(_argument):
    """What a warm process prepares."""


def test_what_a_child_started_ends_with_it():
    with warm_process("tests.processes.test_warm:nothing", "") as warm:
        (ended,) = run_each(DOING, "", [("starting", "sleep", "70")])
        (child, session, started) = ended.result
        assert child == session != warm
        assert gone(started)
