"""What plants faults: each a function from a file of kernels to the changes that it can make there."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace

from ....source.text import edited
from ..mutant import Change, Mutant, changed_line, unified
from ..subject import KernelFile
from .addresses import (
    another_stride,
    blocks_mixed_up,
    divisions_mixed_up,
    last_tile_lost,
    other_tensors_strides,
    own_strides_swapped,
    range_cut,
    term_dropped,
    zeros_not_written,
)
from .values import (
    atomic_stored,
    barrier_dropped,
    bound_off_by_one,
    factor_dropped,
    guard_dropped,
    mask_dropped,
    operand_dropped,
    other_base,
    padding_changed,
    rounded_early,
    subtrahend_changed,
    sum_overwritten,
    transpose_dropped,
    wide_offset_dropped,
)

OPERATORS: dict[str, Callable[[KernelFile], Iterator[Change]]] = {
    "another-stride": another_stride,
    "other-tensors-strides": other_tensors_strides,
    "own-strides-swapped": own_strides_swapped,
    "term-dropped": term_dropped,
    "divisions-mixed-up": divisions_mixed_up,
    "wide-offset-dropped": wide_offset_dropped,
    "bound-off-by-one": bound_off_by_one,
    "operand-dropped": operand_dropped,
    "guard-dropped": guard_dropped,
    "mask-dropped": mask_dropped,
    "padding-changed": padding_changed,
    "range-cut": range_cut,
    "last-tile-lost": last_tile_lost,
    "blocks-mixed-up": blocks_mixed_up,
    "zeros-not-written": zeros_not_written,
    "factor-dropped": factor_dropped,
    "subtrahend-changed": subtrahend_changed,
    "other-base": other_base,
    "transpose-dropped": transpose_dropped,
    "sum-overwritten": sum_overwritten,
    "atomic-stored": atomic_stored,
    "barrier-dropped": barrier_dropped,
    "rounded-early": rounded_early,
}


def mutants_of(file: KernelFile) -> list[Mutant]:
    """Every mutant of a file, by operator and then from top to bottom.

    Each is Python still and differs in one line alone; what would not is left out.
    """
    found: list[Mutant] = []
    for name, operator in OPERATORS.items():
        changes = sorted(operator(file), key=lambda change: [(edit.start, edit.text) for edit in change.edits])
        mutants = (_mutant(file, change) for change in changes)
        kept = [mutant for mutant in mutants if mutant is not None]
        found += [replace(mutant, name=f"{name}-{number}") for number, mutant in enumerate(kept, 1)]
    return found


def _mutant(file: KernelFile, change: Change) -> Mutant | None:
    after = edited(file.text, change.edits)
    line = changed_line(file.text, after)
    function = next(above for above in file.above(change.node) if isinstance(above, ast.FunctionDef))
    if line is None or not _parses(after, function):
        return None
    whole = [text.split("\n")[line - 1].rstrip() for text in (file.text, after)]
    texts = (whole[0].strip(), whole[1].strip(), change.edits, unified(file.path.name, line, *whole))
    return Mutant("", change.fault_class, function.name, file.file, line, *texts, _lines(file.statement(change.node)))


def _lines(statement: ast.stmt) -> tuple[int, int] | None:
    """The lines of a statement; of one that holds others, those of its head."""
    if isinstance(statement, ast.FunctionDef):
        return None
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, last)


def _parses(text: str, function: ast.FunctionDef) -> bool:
    """Whether a function is Python still, in a text of as many lines; the rest of the file is as it was."""
    lines = text.split("\n")[function.lineno - 1 : function.end_lineno]
    try:
        ast.parse(textwrap.dedent("\n".join(lines)))
    except SyntaxError:
        return False
    return True
