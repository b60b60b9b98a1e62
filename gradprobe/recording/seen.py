"""Seen: counts what a watched function did, and says in a sentence why nothing was kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..spans import plural


@dataclass
class Seen:
    """What one process saw of a watched function, or several together."""

    imported: bool = False
    """Whether the function's module was imported and holds the function."""
    trouble: str = ""
    """Why the function could not be wrapped."""
    calls: int = 0
    without_grad: int = 0
    """Calls under no_grad, or in which no input needs a gradient."""
    arrived: int = 0
    """Gradients that came back to an output."""
    not_finite: int = 0
    """Sets that were not kept because they hold NaN or infinity."""
    over: int = 0
    """Sets that were not kept because the limit was reached."""
    kept: int = 0
    layouts_missed: int = 0
    """Layouts of dO that came only with calls whose inputs had not been copied."""
    failures: dict[str, int] = field(default_factory=dict)
    """What went wrong in watching, and how often."""
    notes: list[str] = field(default_factory=list)
    """What a kept set leaves out."""
    main: str = ""
    """The file that the process ran."""
    path: list[str] = field(default_factory=list)
    """Where it looked for modules."""

    def write(self, folder: Path) -> None:
        """Writes the file of this process, which replaces an older one at once."""
        partial = folder / f".seen-{os.getpid()}"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / f"seen-{os.getpid()}.json")

    def why_nothing(self, function: str) -> str:
        """Why no set was kept."""
        if self.trouble:
            return self.trouble
        if not self.imported:
            module = function.rpartition(":")[0]
            as_main = (
                f": {Path(self.main).name} ran as the program itself, which Python calls __main__ and not {module}; "
                "move the function into a module that it imports"
            )
            stem = Path(self.main).stem
            is_main = bool(stem) and stem == module.rpartition(".")[2]
            return f"the module {module} was never imported" + (as_main if is_main else "")
        if not self.calls:
            return f"{function} was never called (calls inside torch.compile are not seen)"
        called = f"{function} was called {_times(self.calls)}"
        if self.failures:
            return f"{called}; {self.troubles()[0]}"
        if self.not_finite:
            return f"{called}; {plural(self.not_finite, 'set')} held NaN or infinite numbers, and no other came"
        if self.without_grad == self.calls:
            return f"{called}, each time without gradients (no_grad, or no input needs one)"
        return f"{called}, and no gradient came back to its output"

    def troubles(self) -> list[str]:
        """One sentence for everything that went wrong or was left out."""
        words = [f"{what} ({_times(times)})" for what, times in self.failures.items()]
        if self.over:
            words.append(f"{plural(self.over, 'set')} more not kept: the limit is {self.kept}")
        if self.kept and self.not_finite:
            words.append(f"{plural(self.not_finite, 'set')} not kept for holding NaN or infinite numbers")
        if self.layouts_missed:
            words.append(f"{plural(self.layouts_missed, 'layout')} of dO came too late to be kept with their inputs")
        return [*words, *self.notes]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def together(found: Iterable[Seen]) -> Seen:
    """What several processes saw, as one."""
    whole = Seen()
    for seen in found:
        whole.imported |= seen.imported
        whole.trouble = whole.trouble or seen.trouble
        for name in ("calls", "without_grad", "arrived", "not_finite", "over", "kept", "layouts_missed"):
            setattr(whole, name, getattr(whole, name) + getattr(seen, name))
        for what, times in seen.failures.items():
            whole.failures[what] = whole.failures.get(what, 0) + times
        whole.notes += [note for note in seen.notes if note not in whole.notes]
        whole.main = whole.main or seen.main
        whole.path += [entry for entry in seen.path if entry not in whole.path]
    return whole


def read(folder: Path) -> list[Seen]:
    """What each process wrote."""
    return [Seen(**json.loads(file.read_text())) for file in sorted(folder.glob("seen-*.json"))]
