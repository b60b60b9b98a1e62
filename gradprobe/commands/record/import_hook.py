"""In a watched program: waits until a module is imported, wraps its function, and writes what it saw of its calls."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...model.failures import Failure
from ...model.number import plural

if TYPE_CHECKING:
    from .capture import WatchedFunction


@dataclass
class WatchedCalls:
    """What one process saw of a watched function, or several together."""

    imported: bool = False
    trouble: str = ""
    """Why the function could not be wrapped."""
    calls: int = 0
    without_grad: int = 0
    """Calls under no_grad, or in which no input needs a gradient."""
    not_finite: int = 0
    over: int = 0
    """Sets that were not kept because the limit was reached."""
    kept: dict[str, str] = field(default_factory=dict)
    """By the name of its file what a set is, in words."""
    failures: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What a kept set leaves out."""
    main: str = ""
    """The file that the process ran."""
    path: list[str] = field(default_factory=list)
    python: str = ""
    """The Python that ran it, where the function was not wrapped."""
    torch: bool = False
    """Whether that Python has torch."""

    def write(self, folder: Path) -> None:
        partial = folder / f".seen-{os.getpid()}"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / f"seen-{os.getpid()}.json")

    def add(self, other: WatchedCalls) -> None:
        """Counts add up; of words the first stays, of lists and sets of inputs each entry once."""
        for what, times in other.failures.items():
            self.failures[what] = times + self.failures.get(what, 0)
        self.kept |= other.kept
        for name, value in vars(other).items():
            own: Any = getattr(self, name)
            if isinstance(value, list):
                own += [entry for entry in value if entry not in own]
            elif isinstance(value, (bool, str)):
                setattr(self, name, own or value)
            elif isinstance(value, int):
                setattr(self, name, own + value)

    def why_nothing(self, function: str) -> str:
        if self.trouble:
            return self.trouble
        if not self.imported:
            return self._why_not_imported(function.rpartition(":")[0])
        if not self.calls:
            return f"{function} was never called (calls inside torch.compile are not seen)"
        called = f"{function} was called {_times(self.calls)}"
        if self.failures:
            return f"{called}; {self.troubles()[0]}"
        if self.not_finite:
            sets = plural(self.not_finite, "set")
            return f"{called}; {sets} held NaN or infinite numbers, and no other came"
        if self.without_grad == self.calls:
            return f"{called}, each time without gradients (no_grad, or no input needs one)"
        return f"{called}, and no gradient came back to its output"

    def _why_not_imported(self, module: str) -> str:
        if not self.torch:
            return f"the program ran in {self.python}, which has no torch: name the Python that the program needs"
        never = f"the module {module} was never imported"
        if Path(self.main).stem != module.rpartition(".")[2]:
            return f"{never} in {self.python}"
        how = f"{Path(self.main).name} ran as the program itself, which Python calls __main__"
        return f"{never}: {how}; move the function into a module that it imports"

    def troubles(self) -> list[str]:
        """One sentence for everything that went wrong or was left out."""
        words = [f"{what} ({_times(times)})" for what, times in self.failures.items()]
        if self.over:
            words.append(
                f"{plural(self.over, 'set')} more not kept: the limit is {len(self.kept)}"
            )
        if self.kept and self.not_finite:
            sets = plural(self.not_finite, "set")
            words.append(f"{sets} not kept for holding NaN or infinite numbers")
        return [*words, *self.notes]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def calls_seen(folder: Path) -> WatchedCalls | None:
    """What all processes saw, as each wrote it there; None where none did."""
    whole, files = WatchedCalls(), sorted(folder.glob("seen-*.json"))
    for file in files:
        whole.add(WatchedCalls(**json.loads(file.read_text())))
    return whole if files else None


def enter() -> None:
    """Has the function that GRADPROBE_WATCH names wrapped as soon as its module is imported."""
    hook = ImportHook()
    hook.write()
    atexit.register(hook.write)
    # It runs before hook.write, which must know whether the module was imported.
    atexit.register(hook.notice)
    sys.meta_path.insert(0, hook)


class ImportHook(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself, but wraps the function when its module is complete, and counts its calls."""

    def __init__(self) -> None:
        self.word = os.environ["GRADPROBE_WATCH"]
        self.module = self.word.partition(":")[0]
        self.folder = Path(os.environ["GRADPROBE_FOLDER"])
        self.busy = self.done = False
        self.watch: WatchedFunction | None = None
        has_torch = importlib.util.find_spec("torch") is not None
        self.unwrapped = WatchedCalls(python=sys.executable, torch=has_torch)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The awaited module as the other finders find it; None for every other module."""
        if self.done or self.busy:
            return None
        # Pytest puts its finder for test files before all others.
        if sys.meta_path[0] is not self:
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
        if fullname != self.module:
            self.notice()
            return None
        self.busy = True
        try:
            for finder in sys.meta_path:
                spec = None if finder is self else finder.find_spec(fullname, path, target)
                if spec is not None:
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
                self._complete(module)

        loader.exec_module = exec_module

    def notice(self) -> None:
        """Wraps in a module that another finder imported past this one: late, but better than not at all."""
        module = sys.modules.get(self.module)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self._complete(module)

    def _complete(self, module: ModuleType) -> None:
        """Wraps the function once. A failure is written down, and the program goes on."""
        if self.done:
            return
        self.done = True
        from .capture import CapturePlan, put_in_place

        try:
            keep, order = int(os.environ["GRADPROBE_KEEP"]), os.environ["GRADPROBE_ORDER"]
            self.watch = put_in_place(module, self.word, CapturePlan(self.folder, keep, order))
            self.watch.on_change = self.write
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            if isinstance(error, Failure):
                words = f"{error}; {error.way_out}"
            self.unwrapped.trouble = f"it could not be wrapped: {words}"
        self.write()

    def write(self) -> None:
        seen = self.watch.seen if self.watch is not None else self.unwrapped
        # At exit `__main__` has no `__file__` any more; at startup there is no argv yet.
        seen.main = next(iter(getattr(sys, "argv", [])), "")
        seen.path = [os.path.abspath(entry) for entry in sys.path]
        try:
            seen.write(self.folder)
        except OSError as error:
            print(f"gradprobe: cannot write what was seen: {error}", file=sys.stderr)
