"""The lines of source that a diagnosis names."""

from __future__ import annotations

from ..diagnosis import Diagnosis
from ..probing.session import Session
from .diagnose import Tested
from .observed import Observed


def with_lines(session: Session, seen: Observed, tested: Tested, diagnosis: Diagnosis) -> Diagnosis:
    """A diagnosis with where it stands in the kernels, as far as that can be read off them."""
    return diagnosis
