"""Awaiting: calls a function with a module as soon as the module is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Awaiting(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself, but makes the loader of the awaited module call back."""

    def __init__(self, module: str, then: Callable[[ModuleType], object]) -> None:
        self.module, self.then = module, then
        self.busy = self.done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The awaited module as the other finders find it; None for every other module."""
        if self.done or self.busy:
            return None
        if sys.meta_path[0] is not self:  # pytest puts its finder for test files before all others
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
        """Calls back for a module that another finder imported past this one: late, but better than not at all."""
        module = None if self.done else sys.modules.get(self.module)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self.complete(module)

    def complete(self, module: ModuleType) -> None:
        """Calls back with the complete module, once."""
        if not self.done:
            self.done = True
            self.then(module)


class _CallingBack(importlib.abc.Loader):
    """A loader that does what another one does, and calls back at the end."""

    def __init__(self, loader: Any, awaiting: Awaiting) -> None:
        self._loader, self._awaiting = loader, awaiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """See `importlib.abc.Loader`."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own loader back, runs it, and calls back."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._awaiting.complete(module)
