"""A kernel file with replacements made in it, how it is probed, and what a probe of it must come to."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gradprobe.numerics.evidence import ProbeResult
from gradprobe.targets.adapters import flash_cuda, lazy_cuda
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.planting import KERNELS, Edit, Unzeroed, edited
from tests.probe import probe

# Of what is probed: the file, the function in it ("" for a built-in target), and the smallest case that shows most: a
# full and a partial tile along both axes, and two heads.
_SMALL = {"batch": 1, "heads": 2, "seqlen": 36, "head_dim": 16}
_LAZY = _SMALL | {"batch": 2, "seqlen": 44}
_LAID = {"layouts": (("all", "distinct"),)}
_DROPOUT, CUDA = Path(__file__).parent / "dropout_attention.py", KERNELS.parent / "cuda"
TARGETS: dict[str, tuple[Path, str, dict[str, Any]]] = {
    "lazy": (KERNELS / "lazy.py", "lazy_intermediates", _LAZY),
    "lazy-backward": (KERNELS / "lazy.py", "lazy_backward", _SMALL),
    "flash": (KERNELS / "flash.py", "flash_intermediates", _SMALL),
    "flash-backward": (KERNELS / "flash.py", "flash_backward", _SMALL),
    "flash-black-box": (KERNELS / "flash.py", "flash_black_box", _SMALL),
    "flash-cuda": (CUDA / "flash.cu", "", _SMALL | _LAID | {"causal": True}),
    "lazy-cuda": (CUDA / "lazy.cu", "", _LAZY | _LAID),
    "dropout": (_DROPOUT, "dropout_backward", _SMALL | {"dropout": 0.3}),
}
ADAPTERS = {"flash-cuda": flash_cuda, "lazy-cuda": lazy_cuda}


@dataclass(frozen=True)
class Changed:
    """A kernel file with replacements made in it, and the case that it is probed on."""

    name: str
    of: str
    """One of TARGETS."""
    edits: tuple[Edit, ...]
    options: dict[str, Any] = field(default_factory=dict)
    """Of the case, where they are other than the target's own."""
    unzeroed: bool = False
    """Whether memory that a host of CUDA kernels sets to 0 is left as it is found."""

    def plant(self) -> str:
        """The file's source with the replacements made."""
        return edited(TARGETS[self.of][0].read_text(), self.edits, cuda=self.of in ADAPTERS)

    def lines(self) -> frozenset[int]:
        """The lines of the statements that were changed; where lines were taken away, those beside them."""
        planted = self.plant()
        before, after = TARGETS[self.of][0].read_text().splitlines(), planted.splitlines()
        changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        changed = {
            line
            for tag, _, _, start, end in changes
            if tag != "equal"
            for line in (range(start + 1, end + 1) if end > start else (start, start + 1))
        }
        if self.of in ADAPTERS:
            return frozenset(changed)
        simple = [
            range(one.lineno, (one.end_lineno or 0) + 1)
            for one in ast.walk(ast.parse(planted))
            if isinstance(one, (ast.stmt, ast.excepthandler)) and not hasattr(one, "body")
        ]
        return frozenset(changed.union(*(lines for lines in simple if changed & set(lines))))

    def probe(self, folder: Path, rows: int | None = None, **how: Any) -> ProbeResult:
        """The report on a copy of the file, written into a folder.

        Args:
            rows: how many the case has, where the edit asks for none and they are not to be those of TARGETS.
        """
        file, function, small = TARGETS[self.of]
        small = small | ({} if rows is None else {"seqlen": rows})
        # A name of its own, since modules and compiled kernels are remembered by theirs.
        copy = folder / f"{re.sub('[^a-z0-9]', '_', f'{self.of} {self.name}')}{file.suffix}"
        copy.write_text(self.plant())
        if "seqlens" in self.options:
            del small["seqlen"]
        case = (lazy_case if self.of.startswith("lazy") else softmax_case)(**small | self.options)
        if function:
            return probe(case, find_target(f"{copy}:{function}"), **how)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ADAPTERS[self.of], "SOURCE", copy)
            if self.unzeroed:
                patched.setattr(ADAPTERS[self.of], "torch", Unzeroed())
            return probe(case, find_target(self.of), **how)


@dataclass(frozen=True)
class Trial:
    """A changed file, by its target's name and its own."""

    changed: Changed

    @property
    def name(self) -> str:
        return f"{self.changed.of}/{self.changed.name}"


@dataclass(frozen=True)
class Scored(Trial):
    """A planted fault that the score counts."""

    fault_class: str
    """Of the field's faults: S1, S2, ..."""
    cause: str
    """The `fault` of the diagnosis that must be named first; of several words, any of which is right, the likeliest
    first."""
    first: str
    """The first wrong intermediate; of a race whose numbers come out right on the CPU, what is raced for."""
    head: int | None = 0
    """Of the first mismatch; None where it is not known beforehand, and so are `batch` and `row`."""
    batch: int | None = None
    row: int | None = None
    why: str = ""
    """Why any of several causes is right."""

    @property
    def causes(self) -> frozenset[str]:
        return frozenset(self.cause.split())


class Unflagged(Trial):
    """An edit after which a kernel is as right as before."""


class Uncovered(Trial):
    """A fault of a kind that no hypothesis is about: it must be found, and no cause may be named."""


def planter(of: str) -> Callable[..., Scored]:
    """A short way to write the records of one target: class, name, cause, first, then edits or the words of edits."""

    def record(
        fault_class: str, name: str, cause: str, first: str, *edits: Edit | tuple[str, str, str], head: int | None = 0,
        row: int | None = None, in_batch: int | None = None, why: str = "", unzeroed: bool = False, **options: Any,
    ) -> Scored:  # fmt: skip
        made = tuple(edit if isinstance(edit, Edit) else Edit(*edit) for edit in edits)
        changed = Changed(name, of, made, options, unzeroed)
        return Scored(changed, fault_class, cause, first, head, in_batch, row, why)

    return record
