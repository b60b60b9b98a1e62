"""Mutants: one fault each, planted in a file of kernels as edits of its text; which are drawn."""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ..inputs.history import CheckRequest
from ..model.failures import Failure, TargetFailure, UsageFailure
from ..processes import run_each
from ..source.kernel_file import Change, KernelFile
from ..source.rewrites.all_rows import OPERATORS
from ..source.syntax import Edit, edited
from .suite.plan import DESCRIBER, TargetSignature

CLASSES = ("S1", "S3", "I64", "M1", "M2", "M3", "N1", "N2", "A", "ACC", "RACE", "PREC")
"""The classes of faults that are planted; `gradprobe explain S1` says what one is."""


@dataclass(frozen=True)
class Mutant:
    """One fault that a file can be given: it differs in one line."""

    name: str
    """Its operator, with a number among those of the file: "another-stride-12"."""
    fault_class: str
    function: str
    line: int
    before: str
    """That line as it stands, without its indent."""
    after: str
    edits: tuple[Edit, ...]
    diff: str
    """Unified, without lines around."""
    verdict: str = ""
    """Of a gate."""
    words: str = ""
    """Of the gate: its first mismatch, its error; or why it was not asked."""
    seconds: float = 0.0

    @property
    def operator(self) -> str:
        return self.name.rpartition("-")[0]

    def plant(self, text: str) -> str:
        """The file's text with the fault in it."""
        return edited(text, self.edits)


def mutants_of(file: KernelFile) -> list[Mutant]:
    """Every mutant of a file, by operator and then from top to bottom.

    Each is Python still and differs in one line alone; what would not is left out.
    """
    found: list[Mutant] = []
    for name, operator in OPERATORS.items():
        changes = list(operator(file))
        changes.sort(key=lambda change: [(edit.start, edit.text) for edit in change.edits])
        kept = filter(None, (_mutant(file, change) for change in changes))
        found += (replace(mutant, name=f"{name}-{at}") for at, mutant in enumerate(kept, 1))
    return found


def _mutant(file: KernelFile, change: Change) -> Mutant | None:
    ours, theirs = file.lines, edited(file.text, change.edits).split("\n")
    function = next(file.above(change.node, ast.FunctionDef))
    lines = [at for at, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1]
    if len(ours) != len(theirs) or len(lines) != 1:
        return None
    try:
        ast.parse(textwrap.dedent("\n".join(theirs[function.lineno - 1 : function.end_lineno])))
    except SyntaxError:
        return None
    (at,), name = lines, file.path.name
    old, new, line = ours[at].rstrip(), theirs[at].rstrip(), at + 1
    return Mutant(
        name="",
        fault_class=change.fault_class,
        function=function.name,
        line=line,
        before=old.strip(),
        after=new.strip(),
        edits=change.edits,
        diff=f"--- {name}\n+++ {name}\n@@ -{line} +{line} @@\n-{old}\n+{new}",
    )


def sampled(mutants: Sequence[Mutant], most: int, seed: int) -> list[Mutant]:
    """A number of mutants in the order of the file. Classes take turns, and so do the operators of a class."""
    draw, by_class = random.Random(seed), list[list[Mutant]]()
    for name in CLASSES:
        those = [mutant for mutant in mutants if mutant.fault_class == name]
        by_operator: dict[str, list[Mutant]] = {}
        for mutant in draw.sample(those, len(those)):
            by_operator.setdefault(mutant.operator, []).append(mutant)
        by_class.append(_in_turn(by_operator.values()))
    drawn = _in_turn(by_class)[:most]
    return sorted(drawn, key=lambda mutant: (mutant.line, mutant.edits[0].start, mutant.name))


def _in_turn(lists: Iterable[Sequence[Mutant]]) -> list[Mutant]:
    """The first of each, then the second of each, and so on."""
    return [mutant for turn in zip_longest(*lists) for mutant in turn if mutant is not None]


def read_file(path: Path, function: str | None) -> KernelFile:
    """Reads a file of kernels; those that `function` reaches are meant, None for all.

    Raises:
        UsageFailure: there is none, it is no Python file, or holds no Triton kernel.
        TargetFailure: it is no Python.
    """
    if path.suffix in (".cu", ".cuh", ".cpp", ".h"):
        raise UsageFailure(f"{path}: faults are planted in Triton kernels, not yet in CUDA C++")
    try:
        file = KernelFile(str(path), path.read_bytes().decode("utf-8-sig"), function)
        kernels = file.kernels
    except OSError as error:
        raise UsageFailure(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageFailure(f"{path} is not written in UTF-8") from error
    except (SyntaxError, ValueError) as error:
        raise TargetFailure(f"{path} is not Python: {error}") from error
    if not kernels:
        reached = f" that {function} reaches" if function else ""
        words = f"{path} holds no Triton kernel{reached}; faults are planted in Triton kernels"
        raise UsageFailure(words, "name the file that holds them: --file KERNELS.py")
    return file


def file_of(request: CheckRequest, named: str | None) -> tuple[Path, str | None]:
    """The file that faults are planted in, and the function whose kernels are meant; None for all of the file's.

    Args:
        named: on the command line; the whole of it is meant, unless the target's function lies in it.

    Raises:
        UsageFailure, TargetFailure: the target is not there, or cannot be imported.
    """
    if request.target.endswith(".py"):  # a file alone
        return Path(named or request.target), None
    (ended,) = run_each(DESCRIBER, str(request.options.get("device", "auto")), [request])
    if ended.raised is not None:
        raise ended.raised.failure
    if ended.crash is not None:
        where = f"{ended.crash.words} at its import{ended.crash.where}"
        raise Failure(f"target {request.target!r} was {where}")
    found = ended.result
    assert isinstance(found, TargetSignature)
    if named is not None and Path(named).resolve() != Path(found.file).resolve():
        return Path(named), None
    if not found.file:
        words = f"target {request.target!r} has no Python source"
        raise UsageFailure(words, "name a file: --file KERNELS.py")
    return Path(found.file), found.function
