"""Runs work and programs in other processes, so that one that crashes or hangs takes nothing else with it."""

from .each import run_each, run_here
from .ended import Crash, Ended, Raised
from .lines import Line
from .telling import tell

__all__ = ["Crash", "Ended", "Line", "Raised", "run_each", "run_here", "tell"]
