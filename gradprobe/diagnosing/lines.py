"""The lines of source that a diagnosis names."""

from __future__ import annotations

from ..diagnosis import Diagnosis
from ..faults.hypothesis import Hypothesis
from ..probing.session import Session
from .observed import Observed


def with_lines(session: Session, seen: Observed, hypothesis: Hypothesis, diagnosis: Diagnosis) -> Diagnosis:
    """A diagnosis with where it stands in the kernels, as far as that can be read off them."""
    return diagnosis
