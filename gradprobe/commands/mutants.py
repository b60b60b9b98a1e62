"""Mutants: one fault each, planted in a file of kernels. A gate: a command that is to fail where a kernel is wrong.
A campaign: what the gate makes of the mutants."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.text import Text

from ..inputs.history import CheckRequest
from ..model.failures import Failure, TargetFailure, UsageFailure
from ..model.number import plural
from ..processes import run_each
from ..processes.ended import words_of
from ..processes.executables import (
    STARTUP,
    EndedProgram,
    Program,
    gradprobe_command,
    run_programs,
)
from ..render.notation import CAUTION
from ..render.rows import folded, headed
from ..source.kernel_file import Change, KernelFile
from ..source.rewrites.all_rows import OPERATORS
from ..source.rewrites.candidates import as_parsed
from ..source.syntax import Edit, edited
from .suite.plan import DESCRIBER, TargetSignature

Operators = Mapping[str, Callable[[KernelFile], Iterable[Change]]]
CLASSES = ("S1", "S3", "I64", "M1", "M2", "M3", "N1", "N2", "A", "ACC", "RACE", "PREC")
"""The classes of faults that are planted; docs/explain.md says what each is."""


@dataclass(frozen=True)
class Mutant:
    """One fault that a file can be given: it differs in one line."""

    name: str
    """Its operator, with a number among those of the file: "another-stride-12"."""
    fault_class: str
    function: str
    line: int
    before: str
    after: str
    edits: tuple[Edit, ...]
    diff: str
    verdict: str = ""
    words: str = ""
    """Of the gate: its first mismatch, its error; or why it was not asked."""
    seconds: float = 0.0

    @property
    def operator(self) -> str:
        return self.name.rpartition("-")[0]

    def plant(self, text: str) -> str:
        return edited(text, self.edits)


def mutants_of(file: KernelFile, operators: Operators = OPERATORS) -> list[Mutant]:
    """Every mutant of a file that is Python and differs in one line, by operator and then from top to bottom."""
    found: list[Mutant] = []
    for name, operator in operators.items():
        changes = list(operator(file))
        changes.sort(key=lambda change: [(edit.start, edit.text) for edit in change.edits])
        kept = filter(None, (_mutant(file, change) for change in changes))
        found += (replace(mutant, name=f"{name}-{at}") for at, mutant in enumerate(kept, 1))
    return found


def _mutant(file: KernelFile, change: Change) -> Mutant | None:
    ours, theirs = file.lines, edited(file.text, change.edits).split("\n")
    function = next(file.above(change.node, ast.FunctionDef))
    lines = [at for at, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1]
    is_one_line = len(ours) == len(theirs) and len(lines) == 1
    if not is_one_line or as_parsed(file, change.edits) is None:
        return None
    (at,), name = lines, file.path.name
    old, new, line = ours[at].rstrip(), theirs[at].rstrip(), at + 1
    diff = f"--- {name}\n+++ {name}\n@@ -{line} +{line} @@\n-{old}\n+{new}"
    about = change.fault_class, function.name, line, old.strip(), new.strip()
    return Mutant("", *about, change.edits, diff)


def sampled(mutants: Sequence[Mutant], most: int, seed: int) -> list[Mutant]:
    """A number of mutants in the order of the file. Classes take turns, and so do the operators of a class."""
    draw, by_class = random.Random(seed), list[list[Mutant]]()
    for name in dict.fromkeys([*CLASSES, *(mutant.fault_class for mutant in mutants)]):
        those = [mutant for mutant in mutants if mutant.fault_class == name]
        by_operator: dict[str, list[Mutant]] = {}
        for mutant in draw.sample(those, len(those)):
            by_operator.setdefault(mutant.operator, []).append(mutant)
        by_class.append(_in_turn(by_operator.values()))
    drawn = _in_turn(by_class)[:most]
    return sorted(drawn, key=lambda mutant: (mutant.line, mutant.edits[0].start, mutant.name))


def _in_turn(lists: Iterable[Sequence[Mutant]]) -> list[Mutant]:
    return [mutant for turn in zip_longest(*lists) for mutant in turn if mutant is not None]


def read_file(path: Path, function: str | None) -> KernelFile:
    """A file of kernels, of which those that `function` reaches are meant. UsageFailure, TargetFailure: it has none."""
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
    UsageFailure, TargetFailure: the target cannot be found or imported."""
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


KILLED, SURVIVED, INVALID = "killed", "survived", "did_not_run"
# A mutant is stopped after so many times the seconds of the gate on the file as it is, and so many seconds more.
_TIMES, _MORE = 5.0, 30.0


@dataclass(frozen=True)
class Gate:
    command: tuple[str, ...]
    words: str
    own: bool
    """Whether it is gradprobe's, whose exit codes tell a wrong number from a crash."""

    @classmethod
    def of(cls, words: str) -> Gate:
        """A command; one of gradprobe's is run by this Python with this gradprobe. UsageFailure where it is none."""
        try:
            first, *rest = shlex.split(words)
        except ValueError as error:
            way_out = "such as --check 'pytest -q tests/test_flash.py'"
            raise UsageFailure(f"--check takes a command, got {words!r}", way_out) from error
        own = first == "gradprobe"
        return cls(gradprobe_command(*rest) if own else (first, *rest), words, own)

    def judged(self, code: int) -> str:
        """KILLED, SURVIVED or INVALID, from the exit code as Popen gives it: gradprobe's own says which are no kill."""
        if code == 0:
            return SURVIVED
        return KILLED if code == 1 or not self.own else INVALID

    def telling(self, output: str) -> str:
        """The line of what a gate wrote that says most: its first mismatch, its first failure, else the last."""
        heads = ("FIRST MISMATCH ", "gradprobe: ") if self.own else ("FAILED ", "ERROR ")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return next((line for line in lines if line.startswith(heads)), (lines or [""])[-1])


@dataclass(frozen=True)
class Shadow:
    """An edited copy of a file that other processes load in its place, and what they told of it."""

    file: Path
    folder: Path

    @property
    def copy(self) -> Path:
        return self.folder / self.file.name

    def write(self, text: str) -> None:
        self.folder.mkdir(parents=True)
        self.copy.write_bytes(text.encode())

    def program(self, command: Sequence[str], **more: str) -> Program:
        place = {"file": str(self.file.resolve()), "copy": str(self.copy)}
        place["loaded"] = str(self.folder / "loaded")
        plain = {**os.environ, **more}
        path = os.pathsep.join(filter(None, [str(STARTUP), plain.get("PYTHONPATH", "")]))
        own = {"PYTHONPATH": path, "GRADPROBE_MUTANT": json.dumps(place)}
        return Program(tuple(command), plain | own)

    @property
    def was_loaded(self) -> bool:
        return (self.folder / "loaded").exists()


@dataclass
class Campaign:
    """What is asked of a file's mutants, and what came of them so far, or in the end."""

    target: str
    gate: Gate
    file: KernelFile
    possible: int
    chosen: tuple[Mutant, ...]
    workers: int
    timeout: float | None
    """Seconds for one mutant; None for what the gate's own time gives."""
    outcomes: list[Mutant] = field(default_factory=list)
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """Of the gate on the file as it is."""

    def having(self, verdict: str) -> list[Mutant]:
        return [mutant for mutant in self.outcomes if mutant.verdict == verdict]

    @property
    def exit_code(self) -> int:
        """0 where every mutant that ran was killed, 1 where one survived, 3 where nothing ran."""
        return 1 if self.having(SURVIVED) else 0 if self.having(KILLED) else 3

    def run(self) -> Iterator[int]:
        """Puts each mutant to the gate: how many are done. UsageFailure, TargetFailure: it fails without any fault."""
        start, found = time.perf_counter(), dict[int, Mutant]()
        with tempfile.TemporaryDirectory(prefix="gradprobe-mutate-") as folder:
            self.plain_seconds = self._seconds_as_it_is(Path(folder))
            limit = self.timeout or _TIMES * self.plain_seconds + _MORE
            shadows = [Shadow(self.file.path, Path(folder) / each.name) for each in self.chosen]
            for mutant, shadow in zip(self.chosen, shadows, strict=True):
                shadow.write(mutant.plant(self.file.text))
            programs = [self._program(shadow) for shadow in shadows]
            ends = run_programs(programs, timeout=limit, workers=self.workers)
            with contextlib.closing(ends):  # type: ignore[type-var]
                for ended in ends:
                    at, seconds = ended.number, round(ended.seconds, 3)
                    verdict, words = self._judged(ended, shadows[at], limit)
                    mutant = replace(self.chosen[at], verdict=verdict, words=words)
                    found[at] = replace(mutant, seconds=seconds)
                    self.outcomes = [found[number] for number in sorted(found)]
                    self.seconds = time.perf_counter() - start
                    yield len(found)

    def _program(self, shadow: Shadow) -> Program:
        return shadow.program(self.gate.command, COLUMNS="120", GRADPROBE_FIX_BUDGET="0")

    def _seconds_as_it_is(self, folder: Path) -> float:
        """What the gate takes on the file as it is, which it is to pass."""
        gate, path = self.gate, self.file.path
        shadow = Shadow(path, folder / "as-it-is")
        shadow.write(self.file.text)
        (plain,) = run_programs([self._program(shadow)], timeout=self.timeout)
        if plain.code != 0:
            end = "took too long" if plain.code is None else f"exit code {plain.code}"
            words = f"the gate fails without any fault: {gate.words}: {end}: {gate.telling(plain.output)}"
            is_refused = gate.own and plain.code == UsageFailure.exit_code
            kind = UsageFailure if is_refused else TargetFailure
            raise kind(words, "make it pass on the file as it is first")
        if not shadow.was_loaded:
            way_out = f"name what it runs with --file, or import {path.name} as a module"
            raise TargetFailure(f"{gate.words}: passes, but never imports {path}", way_out)
        return plain.seconds

    def _judged(self, ended: EndedProgram, shadow: Shadow, limit: float) -> tuple[str, str]:
        if ended.code is None:
            return KILLED, f"no answer within {limit:.0f} s: stopped"
        if not shadow.was_loaded:
            return INVALID, "the gate ended without importing it"
        verdict = self.gate.judged(ended.code)
        words = "" if verdict == SURVIVED else self.gate.telling(ended.output)
        if ended.code < 0:
            words = "; ".join(filter(None, [words_of(ended.code), words]))
        return verdict, words


# Of an exit code the verdict of a campaign, the word that heads it, and its style.
_VERDICTS = {
    0: (KILLED, "KILLED", "bold green"),
    1: (SURVIVED, "SURVIVED", "bold red"),
    3: (INVALID, "NOT RUN", f"bold {CAUTION}"),
}


def render_campaign(campaign: Campaign, width: int) -> Iterator[Text]:
    """The verdict, and each mutant that survived as a diff; why others did not run stands in the JSON."""
    verdict, head, style = _VERDICTS[campaign.exit_code]
    invalid, survivors = len(campaign.having(INVALID)), campaign.having(SURVIVED)
    words = f"{len(campaign.having(verdict)):,} of {plural(len(campaign.outcomes), 'fault')}"
    if invalid and verdict != INVALID:
        words += f" ({invalid:,} did not run)"
    words += f": {campaign.target}, by {campaign.gate.words}"
    yield from (*headed(head, style, words, width), Text())
    if survivors:
        yield Text("  survived: the gate has a gap, or the edit changes no result", "dim")
    file = campaign.file.path.name
    for mutant in survivors:
        words = f"  {mutant.fault_class}  {mutant.name} in {mutant.function}"
        yield Text.assemble("  ", (f"{file}:{mutant.line}", "bold"), words)
        yield Text(f"    - {mutant.before}", "red")
        yield Text(f"    + {mutant.after}", "green")
    faults = f"{plural(campaign.possible, 'fault')} that can be planted in {file}"
    took = f"in {campaign.seconds:.0f} s; the gate alone takes {campaign.plain_seconds:.1f} s"
    yield from folded(f"tried {len(campaign.outcomes):,} of {faults}, {took}", width)


def campaign_as_json(campaign: Campaign, repro_command: str) -> dict[str, Any]:
    """The document; verdict "survived" where any mutant did, else "killed" or "error"."""
    gate, mutants = campaign.gate, list(map(asdict, campaign.outcomes))
    for mutant in mutants:
        mutant["class"] = mutant.pop("fault_class")
        del mutant["edits"]
    return {
        "schema": "gradprobe.mutate/1",
        "verdict": {0: KILLED, 1: SURVIVED, 3: "error"}[campaign.exit_code],
        "target": campaign.target,
        "file": str(campaign.file.path),
        "gate": {"command": gate.words, "own": gate.own, "seconds": campaign.plain_seconds},
        "possible": campaign.possible,
        "chosen": len(campaign.chosen),
        "planted": len(campaign.outcomes),
        **{verdict: len(campaign.having(verdict)) for verdict in (KILLED, SURVIVED, INVALID)},
        "mutants": mutants,
        "reproduce": repro_command,
        "seconds": round(campaign.seconds, 3),
    }
