"""Planted: a kernel file with replacements made in it, and what must be said of it. Every record of a fault is one."""

import ast
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import gradprobe.kernels
from gradprobe.numerics.evidence import ProbeResult
from gradprobe.numerics.finding import ranges_of
from gradprobe.targets.adapters import cuda_kernels
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.probe import probe

KERNELS = Path(gradprobe.kernels.__path__[0]) / "triton"
CUDA, STRANGERS = KERNELS.parent / "cuda", Path(__file__).parents[1] / "strangers"
PLAIN = Path(__file__).parent / "plain_attention.py"
# Of what is probed: the file, the function in it ("" for a built-in target), and the smallest case that shows most: a
# full and a partial tile along both axes, and two heads.
_SMALL = {"batch": 1, "heads": 2, "seqlen": 36, "head_dim": 16}
_LAZY = _SMALL | {"batch": 2, "seqlen": 44}
_LAID = {"layouts": (("all", "distinct"),)}
_PLAIN = {"batch": 2, "heads": 2, "seqlen": 40, "head_dim": 8}
_CONTIGUOUS = {"layouts": (("all", "contiguous"),)}
_STRANGE = {"batch": 1, "heads": 2, "head_dim": 16}
TARGETS: dict[str, tuple[Path, str, dict[str, Any]]] = {
    "lazy": (KERNELS / "lazy.py", "lazy_intermediates", _LAZY),
    "lazy-backward": (KERNELS / "lazy.py", "lazy_backward", _SMALL),
    "flash": (KERNELS / "flash.py", "flash_intermediates", _SMALL),
    "flash-backward": (KERNELS / "flash.py", "flash_backward", _SMALL),
    "flash-black-box": (KERNELS / "flash.py", "flash_black_box", _SMALL),
    "flash-cuda": (CUDA / "flash.cu", "", _SMALL | _LAID | {"causal": True}),
    "lazy-cuda": (CUDA / "lazy.cu", "", _LAZY | _LAID),
    "dropout": (PLAIN, "plain_backward", _SMALL | {"dropout": 0.3}),
    "plain": (PLAIN, "plain_backward", _PLAIN | _CONTIGUOUS),
    "plain-black-box": (PLAIN, "plain_gradients", _PLAIN | _CONTIGUOUS),
    "one_pass": (STRANGERS / "one_pass.py", "one_pass", _STRANGE | {"seqlen": 76, "causal": True}),
    "blocks": (
        STRANGERS / "blocks.py", "blocks",
        _STRANGE | {"seqlen": 40, "causal": True, "softcap": 2.0, "shapes": "blhd"},
    ),
    "grouped": (
        STRANGERS / "grouped.py", "grouped",
        _STRANGE | {"heads": 4, "kv_heads": 2, "seqlen_q": 60, "seqlen_k": 44},
    ),
}  # fmt: skip
STRANGE = ("one_pass", "blocks", "grouped")
"""Kernels in no way like those of the package."""
ADAPTERS = {"flash-cuda": "flash", "lazy-cuda": "lazy"}
"""By target the source that its adapter loads."""
FAULT, EQUIVALENT, UNCOVERED, HIDDEN = "fault", "equivalent", "uncovered", "hidden"


class Unzeroed:
    """torch for adapters whose zeros are left as they come: patched there alone, since the tool uses them too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, "empty" if name == "zeros" else name)


@dataclass(frozen=True)
class Edit:
    """One replacement inside one kernel; `find` must stand there exactly once."""

    kernel: str
    find: str
    replace: str


@dataclass(frozen=True)
class Planted:
    """Replacements in a kernel file, the case that they are probed on, and what must come.

    Args:
        of: one of TARGETS, whose case `options` change.
        kind: EQUIVALENT: as right as before; UNCOVERED: no cause may be named; HIDDEN: right in all that the default
            check runs, and wrong in `shown_by` of the quick battery.
        cause: the `fault` that must be named first; of several words any, and `why` says why. "": not scored.
        first: the first wrong intermediate; `seen` where the kernels are watched, if that is another.
        own: what is wrong by itself; `inherited`: what is right given its wrong parents; `passes`: layouts that match.
        memory: the kind of the finding about an `array` on the CPU, which names the lines of `code`.
        right_on_cpu: every number comes out right where threads run one after another.
        unzeroed: memory that a host of CUDA kernels sets to 0 is left as it is found.
        statements: how each statement begins that the fault is in, where the edits change others.
    """

    name: str
    of: str
    edits: tuple[Edit, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = FAULT
    fault_class: str = ""
    cause: str = ""
    why: str = ""
    first: str = ""
    head: int | None = 0
    batch: int | None = None
    row: int | None = None
    seen: str = ""
    own: frozenset[str] = frozenset()
    inherited: frozenset[str] = frozenset()
    passes: frozenset[str] = frozenset()
    says: tuple[str, ...] = ()
    memory: str = ""
    array: str = ""
    code: tuple[str, ...] = ()
    right_on_cpu: bool = False
    unzeroed: bool = False
    statements: tuple[str, ...] = ()
    shown_by: str = ""

    @property
    def title(self) -> str:
        return f"{self.of}/{self.name}"

    @property
    def is_scored(self) -> bool:
        """Whether the score counts it among the planted faults."""
        return self.kind == FAULT and bool(self.cause)

    @property
    def causes(self) -> frozenset[str]:
        return frozenset(self.cause.split())

    def plant(self, source: str | None = None) -> str:
        """A source, its target's own where none is given, with the replacements made."""
        source = TARGETS[self.of][0].read_text() if source is None else source
        return edited(source, self.edits, cuda=self.of in ADAPTERS)

    def lines(self) -> frozenset[int]:
        """The lines of the statements that it is in; where lines were taken away, those beside them."""
        planted = self.plant()
        if self.statements:
            start = planted.index(f"def {self.edits[0].kernel}(")
            return _lines_of(planted, start, self.statements)
        before, after = TARGETS[self.of][0].read_text().splitlines(), planted.splitlines()
        changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        changed: set[int] = set()
        for tag, _, _, start, end in changes:
            if tag != "equal":
                changed |= {*(range(start + 1, end + 1) if end > start else (start, start + 1))}
        if self.of in ADAPTERS:
            return frozenset(changed)
        simple = [
            range(one.lineno, (one.end_lineno or 0) + 1)
            for one in ast.walk(ast.parse(planted))
            if isinstance(one, (ast.stmt, ast.excepthandler)) and not hasattr(one, "body")
        ]
        return frozenset(changed.union(*(lines for lines in simple if changed & set(lines))))

    def probe(
        self, folder: Path, *, sizes: Mapping[str, Any] | None = None, rows: int | None = None, **how: Any
    ) -> ProbeResult:  # fmt: skip
        """The report on a copy of the file, written into a folder.

        Args:
            sizes: of the case, in place of those of TARGETS; `rows`: its length alone. Its own options win.
        """
        small = dict(TARGETS[self.of][2] if sizes is None else sizes)
        small |= {} if rows is None else {"seqlen": rows}
        if "seqlens" in self.options:
            small.pop("seqlen", None)
        make = lazy_case if self.of.startswith("lazy") else softmax_case
        case, (file, function, _) = make(**{**small, **self.options}), TARGETS[self.of]
        # A name of its own, since modules and compiled kernels are remembered by theirs.
        copy = folder / f"{re.sub('[^a-z0-9]', '_', self.title)}{file.suffix}"
        copy.write_text(self.plant())
        if function:
            return probe(case, find_target(f"{copy}:{function}"), **how)
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(cuda_kernels.SOURCES, ADAPTERS[self.of], copy)
            if self.unzeroed:
                patched.setattr(cuda_kernels, "torch", Unzeroed())
            return probe(case, find_target(self.of), **how)


def edited(source: str, edits: tuple[Edit, ...], *, cuda: bool = False) -> str:
    """A kernel file's source with the replacements made."""
    for edit in edits:
        head = rf"^[^\n]*\b{edit.kernel}\(" if cuda else rf"def {edit.kernel}\("
        begins = re.compile(head, re.MULTILINE).search(source)
        assert begins is not None, f"no {edit.kernel}"
        start = begins.start()
        end = re.compile("^}" if cuda else r"^(@triton\.jit|def )", re.MULTILINE)
        ends = end.search(source, source.index("\n", start))
        stop = len(source) if ends is None else ends.start()
        body = source[start:stop]
        count = body.count(edit.find)
        assert count == 1, f"{edit.find!r} stands {count} times in {edit.kernel}"
        source = source[:start] + body.replace(edit.find, edit.replace) + source[stop:]
    return source


def _lines_of(source: str, start: int, statements: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for statement in statements:
        at = source.index(statement, start)
        first = source.count("\n", 0, at) + 1
        found |= set(range(first, first + statement.count("\n") + 1))
    return frozenset(found)


def file_of(target: str) -> Path:
    return TARGETS[target][0]


def names(words: str) -> frozenset[str]:
    return frozenset(words.split())


def everywhere(kernels: tuple[str, ...], find: str, replace: str) -> tuple[Edit, ...]:
    return tuple(Edit(kernel, find, replace) for kernel in kernels)


def planter(of: str) -> Callable[..., Planted]:
    """A short way to write the records of one target: class, name, cause, first, then edits or the words of edits."""

    def record(
        fault_class: str, name: str, cause: str, first: str, *edits: Edit | tuple[str, str, str], head: int | None = 0,
        row: int | None = None, in_batch: int | None = None, why: str = "", **options: Any,
    ) -> Planted:  # fmt: skip
        made = tuple(edit if isinstance(edit, Edit) else Edit(*edit) for edit in edits)
        return Planted(
            name, of, made, options, fault_class=fault_class, cause=cause, why=why, first=first, head=head,
            batch=in_batch, row=row,
        )  # fmt: skip

    return record


def placer(of: str) -> Callable[..., Planted]:
    """The same for records with every status: name, class, edits, and fields by their names; in batch 0."""

    def record(name: str, fault_class: str, edits: tuple[Edit, ...], **fields: Any) -> Planted:
        return Planted(name, of, edits, fault_class=fault_class, **{"batch": 0, **fields})

    return record


def assert_as_recorded(fault: Planted, report: ProbeResult) -> None:
    """The verdict, the layouts, the first place and every status are those of the record."""
    assert report.verdict == "mismatch"
    measured = report.failing[1]
    findings, first = measured.comparison.findings, measured.first
    for status, names_of in (("mismatch", fault.own), ("inherited", fault.inherited)):
        assert {name for name, one in findings.items() if one.status == status} == names_of
    assert {run.layout for run in report.runs if run.verdict == "match"} == fault.passes
    place = fault.first, fault.batch, fault.head
    assert (first.intermediate, first.batch, first.head) == place
    # The first mismatch is wrong by the order of the worst; what is wrong at all begins in the row of the record.
    wrong = findings[first.intermediate].wrong_rows[first.batch or 0, first.head]
    assert fault.row in (None, ranges_of(wrong)[0][0])
