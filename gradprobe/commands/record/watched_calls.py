"""WatchedCalls: counts what a watched function did, and says in a sentence why nothing was kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...model.number import plural


@dataclass
class WatchedCalls:
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
    failures: dict[str, int] = field(default_factory=dict)
    """What went wrong in watching, and how often."""
    notes: list[str] = field(default_factory=list)
    """What a kept set leaves out."""
    main: str = ""
    """The file that the process ran."""
    path: list[str] = field(default_factory=list)
    """Where it looked for modules."""
    python: str = ""
    """The Python that ran it, where the function was not wrapped."""
    torch: bool = False
    """Whether that Python has torch."""

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
            return self._why_not_imported(function.rpartition(":")[0])
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

    def _why_not_imported(self, module: str) -> str:
        if not self.torch:
            return f"the program ran in {self.python}, which has no torch: name the Python that the program needs"
        never = f"the module {module} was never imported"
        if Path(self.main).stem != module.rpartition(".")[2]:
            return f"{never} in {self.python}"
        return (
            f"{never}: {Path(self.main).name} ran as the program itself, which Python calls __main__ and not {module}; "
            "move the function into a module that it imports"
        )

    def troubles(self) -> list[str]:
        """One sentence for everything that went wrong or was left out."""
        words = [f"{what} ({_times(times)})" for what, times in self.failures.items()]
        if self.over:
            words.append(f"{plural(self.over, 'set')} more not kept: the limit is {self.kept}")
        if self.kept and self.not_finite:
            sets = plural(self.not_finite, "set")
            words.append(f"{sets} not kept for holding NaN or infinite numbers")
        return [*words, *self.notes]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def together(watches: Iterable[WatchedCalls]) -> WatchedCalls:
    """What several processes saw, as one."""
    whole = WatchedCalls()
    for seen in watches:
        for name, value in vars(seen).items():
            setattr(whole, name, _added(getattr(whole, name), value))
    return whole


def _added(before: Any, value: Any) -> Any:
    """Numbers and counts add up; of words the first stays, of lists each entry once."""
    if isinstance(value, dict):
        return before | {what: times + before.get(what, 0) for what, times in value.items()}
    if isinstance(value, list):
        return before + [entry for entry in value if entry not in before]
    return before or value if isinstance(value, (bool, str)) else before + value


def read(folder: Path) -> list[WatchedCalls]:
    """What each process wrote."""
    files = sorted(folder.glob("seen-*.json"))
    return [WatchedCalls(**json.loads(file.read_text())) for file in files]
