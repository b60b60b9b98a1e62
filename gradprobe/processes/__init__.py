"""Runs work and programs in other processes, so that one that crashes or hangs takes nothing else with it."""

from .child import tell
from .each import run_each, run_here
from .ended import Crash, EndedLine, TaskResult, WorkerException

__all__ = ["Crash", "TaskResult", "EndedLine", "WorkerException", "run_each", "run_here", "tell"]
