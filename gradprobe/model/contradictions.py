"""What no report holds and its types allow: words that mean nothing, and parts that do not fit each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .case import Case
from .layout_run import (
    CRASHED,
    FAILED,
    INCOMPLETE,
    MATCH,
    MISMATCH,
    SKIPPED,
    CloseUp,
    Run,
    TensorLayout,
    Window,
)
from .memory_finding import ACCESSES, KINDS, MemoryFinding
from .report import CauseLine

# A line of source, and an indent, are no longer than that.
_LONGEST = 100_000
# Heads or batches: a grid of CUDA has no more along an axis that counts them.
_MOST = 65_535
Wrong = Iterator[tuple[str, str]]


def contradiction(report: Any) -> str:
    """The first contradiction in a report, with its path: "$.runs[0].verdict: ..."; "" where there is none."""
    return next((f"{path}: {words}" for path, words in _within(report, "$")), "")


def _within(part: Any, path: str) -> Wrong:
    if isinstance(part, tuple):
        for at, element in enumerate(part):
            if not isinstance(element, (str, int, float)):
                yield from _within(element, f"{path}[{at}]")
        return
    for name in (
        *getattr(part, "__struct_fields__", ()),
        *getattr(part, "__dataclass_fields__", ()),
    ):
        yield from _within(getattr(part, name), f"{path}.{name}")
    if rule := _RULES.get(type(part)):
        yield from ((f"{path}.{name}", words) for name, words in rule(part))


def _case(case: Case) -> Wrong:
    for name in ("batch", "heads"):
        if not 1 <= getattr(case, name) <= _MOST:
            yield name, f"expected 1 to {_MOST:,}, got {getattr(case, name)}"


def _run(run: Run) -> Wrong:
    yield from _one_of(
        "verdict", run.verdict, (MATCH, MISMATCH, SKIPPED, FAILED, CRASHED, INCOMPLETE)
    )


def _memory(finding: MemoryFinding) -> Wrong:
    yield from _one_of("kind", finding.kind, KINDS)
    yield from _one_of("access", finding.access, ACCESSES)


def _one_of(name: str, word: str, known: tuple[str, ...]) -> Wrong:
    if word not in known:
        yield name, f"expected one of {', '.join(filter(None, known))}, got {word!r}"


def _laid(laid: TensorLayout) -> Wrong:
    yield from _as_many("strides", laid.strides, "sizes", laid.sizes)


def _window(window: Window) -> Wrong:
    if not window.cols:
        yield "cols", "it is empty"
    for name, numbers in (("actual", window.actual), ("expected", window.expected)):
        yield from _as_many(name, numbers, "rows", window.rows)
        for at, row in enumerate(numbers):
            yield from _as_many(f"{name}[{at}]", row, "cols", window.cols)


def _close_up(view: CloseUp) -> Wrong:
    if not view.map or not view.map[0]:
        yield "map", "it is empty"
    for at, line in enumerate(view.map):
        yield from _as_many(f"map[{at}]", line, "map[0]", view.map[0])


def _as_many(name: str, found: Any, other: str, due: Any) -> Wrong:
    if len(found) != len(due):
        yield name, f"it has {len(found)} where {other} has {len(due)}"


def _where(where: CauseLine) -> Wrong:
    for name in ("line", "column", "margin"):
        number = getattr(where, name)
        if number is not None and not 0 <= number <= (1 << 31 if name == "line" else _LONGEST):
            yield name, f"{number} is no place in a file"


_RULES: dict[type, Callable[[Any], Wrong]] = {
    Case: _case,
    Run: _run,
    MemoryFinding: _memory,
    TensorLayout: _laid,
    Window: _window,
    CloseUp: _close_up,
    CauseLine: _where,
}
