"""The side of `gradprobe run` in a watched program: waits until a module is imported, and wraps its function."""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...frontends.triton.stand_in import ImportWatcher
from ...model.failures import Failure
from .call import WatchedCalls

if TYPE_CHECKING:
    from .capture import WatchedFunction


def enter() -> None:
    """Has the function that GRADPROBE_WATCH names wrapped as soon as its module is imported."""
    module = os.environ["GRADPROBE_WATCH"].partition(":")[0]
    wrapping = ImportHook()
    awaiting = ImportWatcher(module, wrapping)
    wrapping.write()
    atexit.register(wrapping.write)
    atexit.register(awaiting.notice)  # runs before wrapping.write, which must know whether the module was imported
    sys.meta_path.insert(0, awaiting)


class ImportHook:
    """Wraps the function in its module, and keeps the file of `WatchedCalls` up to date."""

    def __init__(self) -> None:
        self.word = os.environ["GRADPROBE_WATCH"]
        self.folder = Path(os.environ["GRADPROBE_FOLDER"])
        self.watch: WatchedFunction | None = None
        self.unwrapped = WatchedCalls(python=sys.executable, torch=importlib.util.find_spec("torch") is not None)

    def __call__(self, module: ModuleType) -> None:
        """Wraps the function. A failure is written down, and the program goes on."""
        from .capture import CapturePlan
        from .capturing import put_in_place

        try:
            how = CapturePlan(self.folder, int(os.environ["GRADPROBE_KEEP"]), os.environ["GRADPROBE_ORDER"])
            self.watch = put_in_place(module, self.word.partition(":")[2], self.word, how)
            self.watch.told = self.write
        except Exception as error:
            known = f"{error}; {error.way_out}" if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            self.unwrapped.trouble = f"it could not be wrapped: {known}"
        self.write()

    def write(self) -> None:
        """Writes what this process has seen so far."""
        seen = self.watch.seen if self.watch is not None else self.unwrapped
        # At exit `__main__` has no `__file__` any more; at startup there is no argv yet.
        seen.main = next(iter(getattr(sys, "argv", [])), "")
        seen.path = [os.path.abspath(entry) for entry in sys.path]
        try:
            seen.write(self.folder)
        except OSError as error:
            print(f"gradprobe: cannot write what was seen: {error}", file=sys.stderr)
