"""An error makes a mismatch; a warning is shown and changes no verdict."""

import pytest

from gradprobe.model.memory_finding import ERROR, OUTSIDE, WARNING, MemoryFinding
from gradprobe.numerics.evidence import LayoutRun

pytestmark = pytest.mark.usefixtures("without_causes")

ACCESS = MemoryFinding(OUTSIDE, "q", "dq_kernel loads outside q")


@pytest.mark.parametrize(
    ("severities", "matches"), [((WARNING,), True), ((WARNING, ERROR), False), ((), True)]
)
def test_a_run_fails_by_a_finding_of_severity_error_and_not_by_a_warning(severities, matches):
    memory = tuple(
        MemoryFinding(OUTSIDE, "q", "dq_kernel loads outside q", severity=severity)
        for severity in severities
    )
    assert LayoutRun("contiguous", (), None, None, memory=memory).matches is matches
