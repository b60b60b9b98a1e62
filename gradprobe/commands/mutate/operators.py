"""Every mutant of a file: what the operators that plant faults can make there."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace

from ...source.kernel_file import Change, KernelFile
from ...source.rewrites.all_rows import OPERATORS
from ...source.text import edited
from .mutant import Mutant, changed_line


def mutants_of(file: KernelFile) -> list[Mutant]:
    """Every mutant of a file, by operator and then from top to bottom.

    Each is Python still and differs in one line alone; what would not is left out.
    """
    found: list[Mutant] = []
    for name, operator in OPERATORS.items():
        changes = sorted(
            operator(file), key=lambda change: [(edit.start, edit.text) for edit in change.edits]
        )
        kept = [mutant for change in changes if (mutant := _mutant(file, change)) is not None]
        found += [
            replace(mutant, name=f"{name}-{number}") for number, mutant in enumerate(kept, 1)
        ]
    return found


def _mutant(file: KernelFile, change: Change) -> Mutant | None:
    after = edited(file.text, change.edits)
    line = changed_line(file.text, after)
    function = next(
        above for above in file.above(change.node) if isinstance(above, ast.FunctionDef)
    )
    if line is None or not _parses(after, function):
        return None
    old, new = (text.split("\n")[line - 1].rstrip() for text in (file.text, after))
    diff = f"--- {file.path.name}\n+++ {file.path.name}\n@@ -{line} +{line} @@\n-{old}\n+{new}"
    texts = (old.strip(), new.strip(), change.edits, diff)
    return Mutant(
        "",
        change.fault_class,
        function.name,
        file.file,
        line,
        *texts,
        _lines(file.statement(change.node)),
    )


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
