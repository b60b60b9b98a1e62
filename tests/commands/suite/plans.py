"""Small checks for tests of suites."""

from gradprobe.commands.suite.plan import PlannedCheck
from gradprobe.inputs.history import CheckRequest

SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}


def planned(target, title=None, **options):
    """A check of a small case."""
    return PlannedCheck(
        target if title is None else title, CheckRequest(target, None, None, {**SMALL, **options})
    )
