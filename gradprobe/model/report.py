"""Report: everything that one check found, as a value without tensors and functions. Every form is made from it alone.

The names are those of the JSON, schema gradprobe.report/2: what /1 held has its names there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from .case import Case
from .diagnosis import Diagnosis
from .failures import Failure
from .memory import MemoryFinding
from .number import Number
from .severity import WARNING, Warned

SCHEMA = "gradprobe.report/2"
MATCH, MISMATCH, INHERITED, SKIPPED = "match", "mismatch", "inherited", "skipped"
FAILED, CRASHED, INCOMPLETE = "error", "crashed", "incomplete"
NOT_EXPOSED = "not exposed"


class Source(Struct, frozen=True, kw_only=True):
    """The file that a kernel was loaded from."""

    name: str = ""
    file: str = ""
    line: int | None = None
    sha256: str = ""


class Origin(Struct, frozen=True, kw_only=True):
    """Where a report was made and by which gradprobe: what every form tells paths by, wherever it is shown."""

    folder: str
    """The current folder, where relative paths begin."""
    root: str
    """The folder that CI is told paths from: a checkout."""
    home: str = ""
    version: str = ""


class CheckedTarget(Struct, frozen=True, kw_only=True):
    """What really ran. Of one that did not get as far as being found, the name alone."""

    name: str = ""
    family: str = ""
    backend: str = ""
    """triton, triton-interpreter, cuda, cuda-on-cpu or torch."""
    function: str = ""
    file: str = ""
    line: int | None = None
    sha256: str = ""
    shadows: tuple[str, ...] = ()
    """Files that another search path would have found under the same names."""
    kernels: tuple[Source, ...] = ()
    """Those that were launched."""
    reference: str = ""


class Window(Struct, frozen=True):
    """A few rows and columns around an element, actual beside expected."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    actual: tuple[tuple[Number, ...], ...]
    expected: tuple[tuple[Number, ...], ...]


class Element(Struct, frozen=True, kw_only=True):
    """One element of an intermediate: where it is and what stood there. An index is None along an axis it lacks."""

    intermediate: str
    batch: int | None
    head: int | None
    row: int | None
    col: int | None
    tile: tuple[int | None, int | None]
    """(m, n) of the BLOCK_M x BLOCK_N tile."""
    actual: Number | None
    """None where a report of gradprobe.report/1 held a number that is not finite."""
    expected: Number | None
    budget: Number | None
    masked: bool | None = None
    """Whether a mask covers it; None where that has no meaning."""
    window: Window | None = None

    @property
    def ratio(self) -> float:
        """The error as a multiple of the budget."""
        if self.actual is None or self.expected is None or not self.budget:
            return float("inf")
        error = abs(self.actual - self.expected)
        return error / self.budget if error == error else float("inf")


class Head(Struct, frozen=True, kw_only=True):
    """One head of an intermediate."""

    batch: int | None
    """None where the intermediate has no such axis."""
    head: int
    status: str
    """match, mismatch or inherited."""
    mismatched: int = 0
    max_budget_ratio: Number | None = None
    rows: tuple[tuple[int, int], ...] = ()
    """The wrong ones, as inclusive ranges."""

    @property
    def ratio(self) -> float:
        """The worst error as a multiple of the budget."""
        return float("inf") if self.max_budget_ratio is None else self.max_budget_ratio


class Intermediate(Struct, frozen=True, kw_only=True):
    """One intermediate of a run, compared."""

    name: str
    status: str
    """match, mismatch, inherited or "not exposed"."""
    source: str | None = None
    """exported, tapped or recovered."""
    dtype: str | None = None
    reading_adds: Number | None = None
    """Of a recovered one, the most that reading it out of the gradients may add to an element's error."""
    mismatched: int = 0
    total: int = 0
    non_finite: int = 0
    max_abs_err: Number | None = None
    max_budget_ratio: Number | None = None
    length: int | None = None
    """Of a head: query rows, keys (dK, dV) or distances (dBias)."""
    heads: tuple[Head, ...] = ()

    @property
    def ratio(self) -> float:
        """The worst error as a multiple of the budget."""
        return float("inf") if self.max_budget_ratio is None else self.max_budget_ratio

    def having(self, status: str) -> list[Head]:
        """The heads of a status."""
        return [head for head in self.heads if head.status == status]


class Identity(Struct, frozen=True, kw_only=True):
    """One identity, tried."""

    name: str
    """With its key in front: "I4 <V, dV> = <O, dO>"."""
    of: str = "target"
    """"target" or "reference"."""
    holds: bool
    residual: Number | None
    budget: Number | None

    @property
    def key(self) -> str:
        """I1 to I10, or "repeat"."""
        return self.name.split()[0]

    @property
    def ratio(self) -> float:
        """How far it is from holding, as a multiple of what is allowed."""
        return self.residual / self.budget if self.residual is not None and self.budget else float("inf")


class Error(Struct, frozen=True, kw_only=True):
    """What kept a check or a run from its end."""

    kind: str
    message: str
    way_out: str = ""
    file: str | None = None
    """Where it was when its process died, where that is known."""
    line: int | None = None
    function: str | None = None
    code: str | None = None
    words: str = ""
    """What became of the process."""
    stderr_tail: str = ""
    stack: str = ""
    """Where it was raised: of a crash, and of what else is raised where --traceback asks for it."""
    memory: tuple[MemoryFinding, ...] = ()
    """What the interpreter's watch sees the kernels do there."""

    def trace(self, is_asked_for: bool) -> list[str]:
        """The lines of the stack, where they are asked for or nothing else says where it was."""
        return self.stack.splitlines() if is_asked_for or self.file is None else []


class Counts(Struct, frozen=True):
    """What was compared."""

    heads: int = 0
    """(batch, head) pairs."""
    rows: int = 0
    """Their query rows."""
    elements: int = 0
    intermediates: int = 0


# Of a survey of layouts: what lies in one, and how a match agrees with what is contiguous.
ALONE, TOGETHER, PROGRAM = "one tensor", "all tensors", "program"
BITS, BUDGET = "same bits", "within budget"


class Tried(Struct, frozen=True, kw_only=True):
    """What a survey says of one of its layouts."""

    kind: str
    """ALONE, TOGETHER or PROGRAM."""
    row: str = ""
    """The tensor that does not lie contiguous, "all", or "" of a program."""
    layout: str = ""
    """Its layout."""
    thorough: bool = True
    """Whether it was run twice, with either fill of the guard bands."""
    hazard: str = ""
    """What it takes to be wrong there, where without it the same is right."""


class Run(Struct, frozen=True, kw_only=True):
    """One layout."""

    layout: str
    verdict: str
    """match, mismatch, skipped, error or crashed."""
    skipped: str | None = None
    """The words of a target that refused the layout."""
    precision: str = ""
    undecided: int = 0
    """Entries on the ReLU's kink, where rounding alone decides and either side is right."""
    coarser: tuple[str, ...] = ()
    memory: tuple[MemoryFinding, ...] = ()
    inside: tuple[str, ...] = ()
    """What a look into a black box showed."""
    intermediates: tuple[Intermediate, ...] = ()
    """In dataflow order."""
    first_mismatch: Element | None = None
    compared: Counts = Counts()
    invariants: tuple[Identity, ...] = ()
    error: Error | str | None = None
    """What kept it from its end; words alone in a survey of layouts."""
    severity: str | None = None
    """Of a survey's run that fails: error, or warning where it does not count."""
    how: str | None = None
    """Of a survey's match: BITS or BUDGET."""
    copied: tuple[str, ...] = ()
    """The tensors of which a survey's kernels were given copies."""
    bits: bool | None = None
    tried: Tried | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its values are the case's own: other runs bear the name of their layout with more behind it."""
        return ", " not in self.layout

    @property
    def compares(self) -> tuple[Intermediate, ...]:
        """The intermediates that the target exposed."""
        return tuple(one for one in self.intermediates if one.status != NOT_EXPOSED)

    @property
    def absent(self) -> tuple[str, ...]:
        """The names of the others."""
        return tuple(one.name for one in self.intermediates if one.status == NOT_EXPOSED)

    @property
    def broken(self) -> list[Identity]:
        """The identities that the target breaks."""
        return [one for one in self.invariants if one.of == "target" and not one.holds]

    @property
    def has_wrong_elements(self) -> bool:
        return any(one.mismatched for one in self.intermediates)

    @property
    def told_error(self) -> tuple[str, str] | None:
        """Kind and message of what kept it from a result; None of any other run."""
        if self.verdict not in (FAILED, CRASHED):
            return None
        if isinstance(self.error, Error):
            return self.error.kind, self.error.message
        return "TargetFailure", self.error or self.skipped or "the run came to an error"


class Row(Struct, frozen=True, kw_only=True):
    """The worst element of one row."""

    row: int
    mismatched: int
    col: int
    actual: Number | None
    expected: Number | None
    ratio: Number | None


class CloseUp(Struct, frozen=True, kw_only=True):
    """One intermediate of one head: its error map, its wrong rows, the numbers around the first wrong element."""

    layout: str
    intermediate: str
    batch: int | None
    head: int
    mismatched: int
    total: int
    shape: tuple[int, int]
    """Rows and columns; a vector has one column."""
    tile: tuple[int, int]
    """Rows and columns of one cell of the map."""
    map: tuple[tuple[Number | None, ...], ...]
    """The worst multiple of the budget in each cell; None where every entry is masked."""
    rows: tuple[Row, ...]
    """The wrong rows; where none is wrong, the worst one."""
    element: Element
    """The first wrong one, or the worst where none is wrong."""


class Culprit(Struct, frozen=True):
    """What layouts that fail have in common."""

    kind: str
    strides: tuple[tuple[str, int], ...]
    """(tensor, axis); (tensor, -1): all its axes."""
    words: str


class Survey(Struct, frozen=True, kw_only=True):
    """What a survey of layouts has besides its runs."""

    layouts: int = 0
    """How many are to be tried."""
    matrix: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Verdicts by tensor ("all" for all at once) and layout."""
    programs: Mapping[str, str] = field(default_factory=dict)
    culprits: tuple[Culprit, ...] = ()
    findings: tuple[MemoryFinding, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """What a check came to, also one that failed, crashed or took too long."""

    schema: str = SCHEMA
    origin: Origin | None = None
    """None of what older versions wrote: paths of such are told from the folder in which it is shown."""
    title: str = ""
    """Of one of several checks."""
    number: int = 0
    """Its place among them."""
    verdict: str
    """match, mismatch or error; incomplete where more is to come."""
    severity: str | None = None
    """WARNING of a check that fails, which is shown and does not count."""
    target: CheckedTarget = CheckedTarget()
    environment: Mapping[str, str] = field(default_factory=dict)
    case: Case | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The words of a case that nobody got as far as making."""
    error: Error | None = None
    runs: tuple[Run, ...] = ()
    first_mismatch: Element | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    """Why, best first."""
    known: tuple[str, ...] = ()
    """Sentences about the error, where no diagnosis is named."""
    coarser: tuple[str, ...] = ()
    """What is rounded further than the contract says, each once."""
    notes: tuple[str, ...] = ()
    """What is 0 by design, and what this case cannot show."""
    hints: tuple[str, ...] = ()
    """What else may be done about it."""
    compared: Counts = Counts()
    warnings: tuple[Warned, ...] = ()
    reproduce: str = ""
    """One command line that repeats this."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    close_ups: tuple[CloseUp, ...] = ()
    """What is kept of the values, at most one of each intermediate."""
    close_up: CloseUp | None = None
    """The one that was asked for."""
    strides: Survey | None = None

    @property
    def is_warning(self) -> bool:
        """Whether it fails, and that is shown and does not count."""
        return self.severity == WARNING

    @property
    def name(self) -> str:
        """What was checked, with the title of the case where the check is one of several: `lazy (gqa)`."""
        name = self.target.name or "gradprobe"
        return f"{name} ({self.title})" if self.title else name

    @property
    def measured(self) -> list[Run]:
        """The runs that came to results."""
        return [run for run in self.runs if run.compares]

    @property
    def failing(self) -> Run | None:
        """The first run with a wrong element; else the first that fails otherwise."""
        wrong = [run for run in self.runs if run.verdict == MISMATCH]
        wrong.sort(key=lambda run: (not run.has_wrong_elements, not run.compares))
        return wrong[0] if wrong else None

    @property
    def shown(self) -> Run:
        """The run whose results are shown: the failing one; where that was refused and has none, the first that has."""
        failing = self.failing
        return failing if failing is not None and failing.compares else self.measured[0]

    @property
    def causes(self) -> list[Diagnosis]:
        """The diagnoses that are named: the best one, and those that stand beside it."""
        if not self.diagnoses or not self.diagnoses[0].is_named:
            return []
        first, *others = self.diagnoses
        return [first, *(other for other in others if other.also and other.is_named)]

    @property
    def names(self) -> list[str]:
        """The intermediates of all runs, in dataflow order."""
        return list(dict.fromkeys(one.name for run in self.runs for one in run.intermediates))

    @property
    def own_error(self) -> Error | None:
        """What kept it from its end; None where nothing did, or where a run says it itself."""
        return None if any(run.told_error for run in self.runs) else self.error

    @property
    def is_right_when_contiguous(self) -> bool:
        """Whether the arithmetic is right and an address is not."""
        verdicts = {run.layout: run.verdict for run in self.runs if run.is_plain}
        return verdicts.get("contiguous") == MATCH and MISMATCH in verdicts.values()

    @property
    def memory(self) -> tuple[MemoryFinding, ...]:
        """What was seen of accesses, guard bands and outputs, each once."""
        if self.strides is not None:
            return self.strides.findings
        found = [finding for run in self.runs for finding in run.memory]
        return tuple({(one.kind, one.tensor, one.file, one.line): one for one in reversed(found)}.values())

    def by_status(self, status: str) -> Iterator[tuple[str, list[tuple[Run, Intermediate]]]]:
        """Each intermediate that has a status somewhere, with the runs in which it has."""
        for name in self.names:
            all_of_it = ((run, one) for run in self.runs for one in run.intermediates if one.name == name)
            found = [(run, one) for run, one in all_of_it if one.status == status]
            if found:
                yield name, found


def error_of(failure: Failure) -> Error:
    """A failure as a report holds it."""
    return Error(kind=type(failure).__name__, message=str(failure), way_out=failure.way_out)


def failed_report(failure: Failure, reproduce: str, target: str | None = None) -> Report:
    """What stands in a report's place where there was none to make."""
    return Report(verdict=FAILED, target=CheckedTarget(name=target or ""), error=error_of(failure), reproduce=reproduce)


def add_counts(counts: Iterable[Counts]) -> Counts:
    """Counts of several runs together."""
    sums = (sum(numbers) for numbers in zip(*map(msgspec.structs.astuple, counts), strict=True))
    return Counts(*sums)
