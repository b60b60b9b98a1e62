"""Measured: one run, compared. Probed: everything that one probe found, tensors and all; a Report is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..model.assignment import run_name
from ..model.case import Case
from ..model.intermediates import MATRIX_OF
from ..model.layout_run import (
    FAILED,
    MATCH,
    MISMATCH,
    SKIPPED,
    Element,
    Identity,
    RepeatedResult,
    TensorLayout,
)
from ..model.memory_finding import ERROR, WARNING, WarningNote
from ..model.report import CheckedTarget, CompileError, Diagnosis

if TYPE_CHECKING:
    from ..model.memory_finding import MemoryFinding
    from ..reference import Attention
    from ..runtime.run import Trace
    from .compare import Comparison
    from .conventions import Convention
    from .declared_precision import CoarserArithmetic
    from .finding import Finding

Steps = Mapping[tuple[str, int], tuple[int, int | None]]
"""Of a sharded target, by intermediate and shard: the rank and the step of its ring that made it wrong."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run of the target, compared."""

    problem: Callable[[], Attention]
    """Makes `x`."""
    trace: Trace
    comparison: Comparison
    first: Element | None
    invariants: tuple[Identity, ...] = ()
    coarser: tuple[CoarserArithmetic, ...] = ()
    """What proves to be coarser than the contract says: sums, an operand of the scores, or all dots."""
    rows: tuple[SeenRow, ...] = ()
    """What its kernels were seen to hold."""
    conventions: tuple[Convention, ...] = ()
    """What it exports in other conventions, by which the trace is read, unless they count as wrong."""
    unread: Trace | None = None
    """The trace as it came, where that is another."""
    as_read: MeasuredRun | None = None
    """Where they count as wrong: the run read by those."""

    @cached_property
    def x(self) -> Attention:
        """The run's problem in float64, made where it is asked for: that is four times what 16-bit inputs take."""
        return self.problem()

    @property
    def raw(self) -> Trace:
        """The trace as it came, which another call gives as well."""
        return self.unread or self.trace

    @property
    def matches(self) -> bool:
        return self.comparison.matches and not self.broken

    @property
    def is_recoverable(self) -> bool:
        """Whether P or dS may be recovered of it: one is not there, and a gradient is."""
        given = self.trace.values.keys()
        return not given >= {"P", "dS"} and not given.isdisjoint(MATRIX_OF)

    @property
    def broken(self) -> list[Identity]:
        return [one for one in self.invariants if not one.holds]


@dataclass(frozen=True)
class SeenRow:
    """One intermediate as one kernel held it, judged."""

    kernel: str
    into: tuple[str, ...]
    """The gradients that it went into."""
    finding: Finding
    measured: MeasuredRun
    """The first of those gradients and what its kernel made it of, compared: it has the values."""

    @property
    def is_own(self) -> bool:
        """Whether it is wrong by itself."""
        return self.finding.status == MISMATCH


@dataclass(frozen=True)
class DataflowEvidence:
    """What following the operations of a run showed."""

    seen: tuple[Diagnosis, ...] = ()
    """What goes wrong by itself."""
    failures: tuple[str, ...] = ()
    """What kept operations from being followed."""
    shown: MeasuredRun | None = None
    """The run's results as they came, and what its kernels hold; None where that is not all that they were made of."""


@dataclass(frozen=True)
class BlackBoxEvidence:
    """What a black box's answers to one-hot problems showed."""

    measured: MeasuredRun
    """Those problems, which are one, compared; what the target does not expose is recovered."""
    sentences: tuple[str, ...]
    """What their disagreements say; empty where everything is right."""
    shown: MeasuredRun
    """The ordinary run's results as they came, and what was recovered beside them."""


@dataclass(frozen=True)
class LayoutRun:
    """One layout."""

    layout: str
    assigned: tuple[tuple[str, str], ...]
    measured: MeasuredRun | None
    """None where the target refused the layout."""
    skipped: str | None
    """Why it was skipped: the target's words. What its kernels did to memory before counts all the same."""
    inside: BlackBoxEvidence | None = None
    watched: DataflowEvidence | None = None
    memory: tuple[MemoryFinding, ...] = ()
    """What its kernels did to memory that they should not have, where every access was seen."""
    repeats: int = 0
    """How many runs were compared bit by bit; 0 of a single one."""
    repeated: tuple[RepeatedResult, ...] = ()
    laid: tuple[TensorLayout, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether its values are the case's own: other runs bear the name of their layout with more behind it."""
        return self.layout == run_name(self.assigned)

    @property
    def verdict(self) -> str:
        if not self.matches:
            return MISMATCH
        return SKIPPED if self.measured is None else MATCH

    @property
    def matches(self) -> bool:
        """Whether all that the target exported is right; so also where nothing was measured."""
        is_clean = all(memory_finding.severity != ERROR for memory_finding in self.memory)
        return is_clean and (self.measured is None or self.measured.matches)

    @property
    def shown(self) -> MeasuredRun | None:
        """The run's own results, and with them what was seen or recovered where the target exposes nothing."""
        if self.watched is not None and self.watched.shown is not None:
            return self.watched.shown
        return self.measured if self.inside is None else self.inside.shown

    def holding(self, name: str) -> MeasuredRun | None:
        """The measurement whose values of an intermediate are shown, where any has it."""
        if self.measured is None or name in self.measured.comparison.findings:
            return self.measured
        return (self.row_of(name) or self.inside or self).measured

    def row_of(self, name: str) -> SeenRow | None:
        """Of the kernels that an intermediate was seen in, the first that is wrong by itself; else the worst."""
        rows = [row for row in self.shown.rows if row.finding.name == name] if self.shown else []
        worst = attrgetter("is_own", "finding.mismatched")
        return max(rows, key=worst, default=None)


@dataclass(frozen=True)
class ProbeResult:
    """What a probe came to."""

    case: Case
    provenance: CheckedTarget
    environment: Mapping[str, str]
    runs: tuple[LayoutRun, ...]
    notes: tuple[str, ...]
    """What is 0 by design."""
    reproduce: str
    """One command line that repeats this."""
    warned: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    diagnoses: tuple[Diagnosis, ...] = ()
    """Why, best first; empty where all matches, and where nothing is known."""
    known: tuple[str, ...] = ()
    """Sentences about the error, where no diagnosis is named."""
    sought: bool = True
    """Whether a cause was sought, where something is wrong."""
    steps: Steps = field(default_factory=dict)
    not_checked: tuple[str, ...] = ()
    """What the target may take and neither this case nor a small second one used."""
    undeclared: tuple[str, ...] = ()
    """What came out wrong in a small second case, and nothing says that the target takes it."""
    beyond: str = ""
    """Of a small second case of a target that matches as it was asked for: what it uses, in words and options."""
    added: Mapping[str, Any] = field(default_factory=dict)
    """The words of the command line that make it that second case."""
    compile_errors: tuple[CompileError, ...] = ()
    """What no compiler takes of kernels that Triton's interpreter ran."""

    @property
    def verdict(self) -> str:
        """A kernel that does not compile is no match, whatever the interpreter makes of it."""
        if self.failing:
            return MISMATCH
        return FAILED if self.compile_errors else MATCH

    @property
    def measured(self) -> list[tuple[LayoutRun, MeasuredRun]]:
        return [(run, run.shown) for run in self.runs if run.shown is not None]

    @property
    def failing(self) -> tuple[LayoutRun, MeasuredRun] | None:
        """The first run with a wrong element; else the first that fails otherwise, and last what was refused too late.

        Such a one has no results: those of the first run that has stand beside it.
        """
        measured = self.measured
        wrong = [(run, found) for run, found in measured if not run.matches]
        refused = [run for run in self.runs if run.shown is None and not run.matches]
        wrong += [(run, measured[0][1]) for run in refused]
        return min(wrong, key=lambda each: each[1].comparison.matches, default=None)

    @property
    def warnings(self) -> list[WarningNote]:
        """What is shown and does not count: of memory each finding once with its layouts."""
        layouts: dict[tuple[str, str, str], dict[str, None]] = {}
        for run in self.runs:
            for finding in run.memory:
                if finding.severity == WARNING:
                    about = (finding.kind, finding.tensor, finding.sentence)
                    layouts.setdefault(about, {})[run.layout] = None
        return [WarningNote(*about, tuple(named)) for about, named in layouts.items()]
