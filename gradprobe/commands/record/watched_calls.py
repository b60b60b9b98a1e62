"""What a watched program keeps and counts of a function, and why it kept nothing, in a sentence."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

ENDING = ".inputs.pt"
# How many kinds of what was left out are told apart.
_MOST = 10


@dataclass(frozen=True)
class CapturePlan:
    folder: Path
    keep: int
    order: str
    """The function's order of axes, bhld or blhd. Sets are kept as [B, H, L, D]."""


@dataclass
class WatchedCalls:
    """What one process saw of a watched function, or several together."""

    python: str = ""
    """The Python that ran it, and whether that has torch."""
    torch: bool = False
    imported: bool = False
    trouble: str = ""
    calls: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    """What was not kept and why, and how often that was."""
    path: list[str] = field(default_factory=list)

    def leave_out(self, words: str) -> bool:
        """Counts it; whether it is the first of its kind. A message may hold a number that differs each time."""
        if len(self.left_out) >= _MOST and words not in self.left_out:
            return False
        self.left_out[words] = self.left_out.get(words, 0) + 1
        return self.left_out[words] == 1

    def write(self, folder: Path) -> None:
        partial = folder / f".seen-{os.getpid()}"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / f"seen-{os.getpid()}.json")

    def __or__(self, other: WatchedCalls) -> WatchedCalls:
        return WatchedCalls(
            self.python or other.python,
            self.torch or other.torch,
            self.imported or other.imported,
            self.trouble or other.trouble,
            self.calls + other.calls,
            self.kept | other.kept,
            dict(Counter(self.left_out) + Counter(other.left_out)),
            list(dict.fromkeys((*self.path, *other.path))),
        )

    def why_nothing(self, function: str) -> str:
        if self.trouble:
            return self.trouble
        if not self.torch:
            return f"the program ran in {self.python}, which has no torch: name the Python that the program needs"
        if not self.imported:
            module = function.rpartition(":")[0]
            why = "of a file that is run as the program itself nothing is watched"
            return f"the module {module} was never imported in {self.python}; {why}"
        if not self.calls:
            return f"{function} was never called (calls inside torch.compile are not seen)"
        why = "; ".join(self.sentences()) or "no gradient came back to its output"
        return f"{function} was called {_times(self.calls)}; {why}"

    def sentences(self) -> list[str]:
        return [f"{what} ({_times(times)})" for what, times in self.left_out.items()]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
