"""A watched program's side of `gradprobe run`: waits for a module's import, and wraps its function there."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...failures import Failure
from ..seen import Seen

if TYPE_CHECKING:
    from ..watch import Watch


def enter() -> None:
    """From now on the function that GRADPROBE_WATCH names is wrapped as soon as its module is imported."""
    module = os.environ["GRADPROBE_WATCH"].partition(":")[0]
    wrapping = Wrapping()
    awaiting = Awaiting(module, wrapping)
    wrapping.write()
    atexit.register(wrapping.write)
    atexit.register(awaiting.notice)  # runs first: at the latest now it is known whether the module came in
    sys.meta_path.insert(0, awaiting)


class Wrapping:
    """Wraps the function in its module, and keeps the file of what was seen up to date."""

    def __init__(self) -> None:
        self.word = os.environ["GRADPROBE_WATCH"]
        self.folder = Path(os.environ["GRADPROBE_FOLDER"])
        self.watch: Watch | None = None
        self.unwrapped = Seen()

    def __call__(self, module: ModuleType) -> None:
        """Wraps it; what prevents that is written down, and the program goes on."""
        from ..capturing import put_in_place
        from ..watch import Keeping

        try:
            how = Keeping(self.folder, int(os.environ["GRADPROBE_KEEP"]), os.environ["GRADPROBE_ORDER"])
            self.watch = put_in_place(module, self.word.partition(":")[2], self.word, how)
            self.watch.told = self.write
        except Exception as error:
            known = f"{error}; {error.way_out}" if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            self.unwrapped.trouble = f"it could not be wrapped: {known}"
        self.write()

    def write(self) -> None:
        """Writes what this process has seen so far."""
        seen = self.watch.seen if self.watch is not None else self.unwrapped
        # At the end `__main__` has no `__file__` any more; before the beginning there is no argv yet.
        seen.main = next(iter(getattr(sys, "argv", [])), "")
        seen.path = [os.path.abspath(entry) for entry in sys.path]
        try:
            seen.write(self.folder)
        except OSError as error:
            print(f"gradprobe: cannot write what was seen: {error}", file=sys.stderr)


class Awaiting(importlib.abc.MetaPathFinder):
    """Finds nothing itself; has the awaited module's loader call back when the module is complete."""

    def __init__(self, module: str, wrap: Wrapping) -> None:
        self.module, self.wrap = module, wrap
        self.busy = self.done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The awaited module as the other finders find it; None for every other one."""
        if self.done or self.busy:
            return None
        if sys.meta_path[0] is not self:  # pytest puts a finder of its own, for test files, before all others
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
        if fullname != self.module:
            self.notice()
            return None
        self.busy = True
        try:
            spec = self._found(fullname, path, target)
        finally:
            self.busy = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _CallingBack(spec.loader, self)
        return spec

    @staticmethod
    def _found(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target) if not isinstance(finder, Awaiting) else None
            if spec is not None:
                return spec
        return None

    def notice(self) -> None:
        """Wraps a module that another finder brought in past this one: late, but better than not at all."""
        module = None if self.done else sys.modules.get(self.module)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self.complete(module)

    def complete(self, module: ModuleType) -> None:
        """The module is there: its function is wrapped, once."""
        if not self.done:
            self.done = True
            self.wrap(module)


class _CallingBack(importlib.abc.Loader):
    """A loader that is another one, but for the call at the end."""

    def __init__(self, loader: Any, awaiting: Awaiting) -> None:
        self._loader, self._awaiting = loader, awaiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the other one does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, puts its own loader back, and calls."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._awaiting.complete(module)
