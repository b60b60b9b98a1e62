"""An edited copy of a file that other processes load in its place, and what they told of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...processes.startup import STARTUP

# A process that has it runs on a copy of somebody's kernels.
VARIABLE = "GRADPROBE_MUTANT"


@dataclass(frozen=True)
class Shadow:
    file: Path
    folder: Path
    watches_lines: bool = False

    @property
    def copy(self) -> Path:
        return self.folder / self.file.name

    def write(self, text: str) -> None:
        self.folder.mkdir(parents=True)
        self.copy.write_bytes(text.encode())

    def environment(self, plain: Mapping[str, str]) -> dict[str, str]:
        """The environment in which a program, and all that it starts, loads the copy."""
        loaded, lines = (str(self.folder / name) for name in ("loaded", "lines"))
        place = {"file": str(self.file.resolve()), "copy": str(self.copy), "loaded": loaded}
        place["lines"] = lines if self.watches_lines else ""
        path = os.pathsep.join(filter(None, [str(STARTUP), plain.get("PYTHONPATH", "")]))
        return {**plain, "PYTHONPATH": path, VARIABLE: json.dumps(place)}

    @property
    def was_loaded(self) -> bool:
        return (self.folder / "loaded").exists()

    @property
    def lines(self) -> frozenset[int]:
        """Those of the copy that ran, where they were watched."""
        file = self.folder / "lines"
        words = file.read_text().split() if file.exists() else []
        return frozenset(int(word) for word in words if word.isdigit())
