"""Whether gradprobe explains faults that were in public kernels once, and that their authors have mended since.

    python benchmarks/history.py FOLDER [--only NAME] [--json FILE]

FOLDER holds a folder for each kernel, with `words`, what follows `gradprobe check`, and `faults`: a JSON list with
`name`, `file`, `places` (first and last line of each statement that the mending commit changed, or that a fault there
acts in), `every` (whether all of them must be named, or any) and, where a fault is to be mended alone, `mended`: the
words of a check that matches without it, and is `words` where it is left out.

A fault is explained where the diagnoses name its places, and mended where the check matches with the edit that was
tried.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strangers import Copy, mended_text, run

FACTS = ("outside/", "race/", "unwritten/")


@dataclass(frozen=True)
class Explained:
    """One fault of history, and what came of it."""

    kernel: str
    fault: str
    named: tuple[int, ...]
    """The numbers of its places that the diagnoses name."""
    of: int
    explained: bool
    mended: bool | None
    """None where no edit is told as tried."""
    said: tuple[tuple[str, tuple[int, ...]], ...]
    """Every cause, with its lines."""
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="kernels whose folder begins with this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    out, found = given.json.resolve() if given.json else None, []
    for folder in sorted(path.parent.resolve() for path in given.folder.glob("*/faults")):
        if folder.name.startswith(given.only):
            here = explained_in(folder)
            found += here
            print("\n".join(map(line, here)), flush=True)
            if out:
                out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    explained, mended = (
        sum(getattr(one, name) is True for one in found) for name in ("explained", "mended")
    )
    print(
        f"{len(found)} faults in {len({one.kernel for one in found})} kernels: explained {explained}, mended {mended}"
    )


def line(one: Explained) -> str:
    """What came of a fault, in three lines."""
    mended = {None: "no edit", True: "mended", False: "NOT MENDED by its edit"}[one.mended]
    words = f"{'explained' if one.explained else 'NOT explained'} ({len(one.named)} of {one.of} places), {mended}"
    said = "; ".join(f"{cause} {list(lines)}" for cause, lines in one.said) or "nothing"
    return f"{one.kernel}: {one.fault}: {words}; {one.seconds:.0f} s\n  said {said}"


def explained_in(folder: Path) -> list[Explained]:
    """The faults of one kernel."""
    words, faults = (
        shlex.split((folder / "words").read_text()),
        json.loads((folder / "faults").read_text()),
    )
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        name = faults[0]["file"]
        plain = Copy.of(
            folder, name, (folder / name).read_text(), Path(scratch) / "plain", words
        )
        (ended,) = run([plain.check()], 1)
        report = plain.found("report")
        found = [
            Explained(folder.name, fault["name"], *_named(fault, report), _mended(folder, fault, report, Path(scratch)),
                      _said(report), ended.seconds)
            for fault in faults
        ]  # fmt: skip
        os.chdir(folder)
    return found


def _said(report: dict[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(
        (each["fault"], tuple(at["line"] for at in each["where"]))
        for each in report.get("diagnoses", ())
    )


def _named(fault: dict[str, Any], report: dict[str, Any]) -> tuple[tuple[int, ...], int, bool]:
    """Which places of a fault are named, of how many, and whether these are enough."""
    causes = [
        each
        for each in report.get("diagnoses", ())
        if each["explained"] >= 0.9 or each["fault"].startswith(FACTS)
    ]
    said = {
        at["line"]
        for each in causes
        for at in each["where"]
        if at["file"].endswith(fault["file"])
    }
    places = fault["places"]
    named = tuple(
        at
        for at, (first, last) in enumerate(places)
        if any(first <= one <= last for one in said)
    )
    return named, len(places), len(named) == len(places) if fault["every"] else bool(named)


def _mended(
    folder: Path, fault: dict[str, Any], report: dict[str, Any], scratch: Path
) -> bool | None:
    """Whether a check without the fault matches with the tried edit of its cause, or else with that for all."""
    text = mended_text(report, (folder / fault["file"]).read_text())
    if text is None:
        return None
    words = shlex.split(fault.get("mended") or (folder / "words").read_text())
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        copy = Copy.of(folder, fault["file"], text, Path(own) / "mended", words)
        run([copy.check()], 1)
        return bool(copy.found("report").get("verdict") == "match")


if __name__ == "__main__":
    main()
