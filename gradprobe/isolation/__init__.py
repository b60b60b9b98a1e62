"""Work in processes of its own, so that one that crashes or hangs takes nothing else with it."""

from .each import run_each
from .ended import Crash, Ended, Raised

__all__ = ["Crash", "Ended", "Raised", "run_each"]
