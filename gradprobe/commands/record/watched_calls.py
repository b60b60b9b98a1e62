"""What a watched program keeps and counts of a function, and why it kept nothing, in a sentence."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...model.number import plural

ENDING = ".inputs.pt"


@dataclass(frozen=True)
class CapturePlan:
    folder: Path
    keep: int
    order: str
    """The function's order of axes, bhld or blhd. Sets are kept as [B, H, L, D]."""

    def as_environment(self, word: str) -> dict[str, str]:
        words = {"WATCH": word, "FOLDER": str(self.folder.resolve())}
        words |= {
            "KEEP": str(self.keep),
            "ORDER": self.order,
            "ENTRY": f"{__package__}.import_hook:enter",
        }
        return {f"GRADPROBE_{name}": value for name, value in words.items()}


@dataclass
class WatchedCalls:
    """What one process saw of a watched function, or several together."""

    imported: bool = False
    trouble: str = ""
    calls: int = 0
    without_grad: int = 0
    """Calls under no_grad, or in which no input needs a gradient."""
    not_finite: int = 0
    over: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    """By the name of its file what a set is, in words."""
    failures: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What a kept set leaves out."""
    main: str = ""
    path: list[str] = field(default_factory=list)
    python: str = ""
    """The Python that ran it, where the function was not wrapped."""
    torch: bool = False

    def note(self, words: str) -> None:
        if words not in self.notes:
            self.notes.append(words)

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
        words = [f"{what} ({_times(times)})" for what, times in self.failures.items()]
        if self.over:
            more, limit = plural(self.over, "set"), len(self.kept)
            words.append(f"{more} more not kept: the limit is {limit}")
        if self.kept and self.not_finite:
            sets = plural(self.not_finite, "set")
            words.append(f"{sets} not kept for holding NaN or infinite numbers")
        return [*words, *self.notes]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
