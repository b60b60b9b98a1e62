"""The side of `gradprobe run` in a watched program: waits until a module is imported, and wraps its function.

The program's Python may have nothing of what gradprobe needs.
"""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...model.failures import Failure
from .watched_calls import CapturePlan, WatchedCalls


def enter() -> None:
    """Has the function that GRADPROBE_WATCH names wrapped as soon as its module is imported."""
    hook = ImportHook()
    hook.write()
    atexit.register(hook.write)
    sys.meta_path.insert(0, hook)


class ImportHook(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself, but wraps the function when its module is complete, and counts its calls."""

    def __init__(self) -> None:
        self.word, folder, keep, order = json.loads(os.environ["GRADPROBE_WATCH"])
        self.module = self.word.partition(":")[0]
        self.how = CapturePlan(Path(folder), keep, order)
        self.busy = False
        has_torch = importlib.util.find_spec("torch") is not None
        self.seen = WatchedCalls(sys.executable, has_torch)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The awaited module as the other finders find it; None for every other module."""
        if self.busy or self.seen.imported:
            return None
        # Pytest puts its finder for test files before all others.
        if sys.meta_path[0] is not self:
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
        if fullname != self.module:
            return None
        self.busy = True
        try:
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(fullname, path, target)):
                    self._await(spec.loader)
                    return spec
        finally:
            self.busy = False
        return None

    def _await(self, loader: Any) -> None:
        plain = getattr(loader, "exec_module", None)
        if plain is None:
            return

        def exec_module(module: ModuleType) -> None:
            plain(module)
            if module.__name__ == self.module:  # pytest's loader has many
                loader.exec_module = plain
                self._wrap_in(module)

        loader.exec_module = exec_module

    def _wrap_in(self, module: ModuleType) -> None:
        """Wraps the function. A failure is written down, and the program goes on."""
        self.seen.imported = True
        try:
            from .capture import put_in_place

            watch = put_in_place(module, self.word, self.how, self.seen)
            watch.on_change = self.write
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            if isinstance(error, Failure):
                words = f"{error}; {error.way_out}"
            self.seen.trouble = f"it could not be wrapped: {words}"
        self.write()

    def write(self) -> None:
        self.seen.path = [os.path.abspath(entry) for entry in sys.path]
        try:
            self.seen.write(self.how.folder)
        except OSError as error:
            print(f"gradprobe: cannot write what was seen: {error}", file=sys.stderr)
