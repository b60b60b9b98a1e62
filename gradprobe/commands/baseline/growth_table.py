"""What became of saved errors: a table for people, and as JSON, schema gradprobe.baseline.diff/1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from ...model.number import plural
from ...render.notation import ASCII, UTF8
from ...render.rows import headed
from .growth import ALARMS, GROWN, IMPROVED, SAME, BaselineCell, Changes, Growth

SCHEMA = "gradprobe.baseline.diff/1"
_STYLES = {GROWN: "bold red", IMPROVED: "green", SAME: ""}
_NAME, _CELL = 9, 15


def render(changes: Changes, width: int, *, utf8: bool = True) -> list[Text]:
    """The factors by which errors changed, layout by layout, and a line for each that fails."""
    return [
        *_headline(changes, width),
        *_table(changes, width, utf8),
        *(Text(f"GREW {_cell_words(cell)}", "bold") for cell in changes.grown),
        *(
            Text(f"GONE {name or 'every intermediate'} in {layout}", "bold")
            for layout, name in changes.gone
        ),
        *(
            Text(f"COARSER {name} is now rounded further than its contract says", "bold")
            for name in changes.coarser
        ),
        *(
            Text(f"  new, not in the file: {name or 'every intermediate'} in {layout}")
            for layout, name in changes.new
        ),
        *(Text(f"  {note}") for note in changes.notes),
    ]


def _headline(changes: Changes, width: int) -> Iterator[Text]:
    counts = {
        verdict: sum(cell.verdict == verdict for cell in changes.cells)
        for verdict in (GROWN, IMPROVED, SAME)
    }
    words = ", ".join(
        f"{count} {verdict}" for verdict, count in counts.items() if count or verdict == GROWN
    )
    words += f", {len(changes.gone)} gone" if changes.gone else ""
    verdict, style = ("GROWN", "bold red") if changes.fails else ("NO GROWTH", "bold green")
    words = f"{changes.before.command_words}: {words}, over {plural(len(changes.before.seeds), 'draw')}"
    return headed(verdict, style, words, width)


def _table(changes: Changes, width: int, utf8: bool) -> Iterator[Text]:
    """As many layouts side by side as fit."""
    layouts = list(dict.fromkeys(cell.layout for cell in changes.cells))
    cells = {(cell.layout, cell.name): cell for cell in changes.cells}
    fit = max(1, (width - _NAME) // _CELL)
    for first in range(0, len(layouts), fit):
        some = layouts[first : first + fit]
        yield Text("  rms error beside that saved, as a factor", "dim")
        yield Text(
            " " * _NAME + "".join(f"{layout[: _CELL - 1]:>{_CELL}}" for layout in some), "dim"
        )
        for name in dict.fromkeys(name for layout, name in cells if layout in some):
            row = [cells.get((layout, name)) for layout in some]
            yield Text.assemble(f"  {name:<{_NAME - 2}}", *(_factor(cell, utf8) for cell in row))


def _factor(cell: BaselineCell | None, utf8: bool) -> tuple[str, str]:
    if cell is None:
        return f"{'-':>{_CELL}}", "dim"
    marks = UTF8 if utf8 else ASCII
    mark = {GROWN: marks.mismatch, IMPROVED: marks.improved, SAME: ""}[cell.verdict]
    return f"{mark + _written(cell.rms.factor) + marks.times:>{_CELL}}", _STYLES[cell.verdict]


def _cell_words(cell: BaselineCell) -> str:
    """Whichever figure grew, with what draws alone may come to."""
    grown = [
        (word, one)
        for word, one in (("rms", cell.rms), ("largest", cell.worst))
        if one.verdict == GROWN
    ]
    words = [
        f"{word} error {_written(one.factor)}x, noise up to {_written(one.noise)}x"
        for word, one in grown
    ]
    return f"{cell.name} {cell.layout} {'; '.join(words)}"


def _written(factor: float) -> str:
    return f"{factor:.2f}" if factor < 100 else f"{factor:.3g}"


def changes_as_json(changes: Changes) -> dict[str, Any]:
    """All of it, ready for `json.dumps`."""
    before, after = changes.before, changes.after
    return {
        "verdict": GROWN if changes.fails else SAME,
        "target": {"name": before.request.target},
        "options": dict(before.request.options),
        "seeds": list(before.seeds),
        "ran": before.ran,
        "environment": {"before": dict(before.environment), "after": dict(after.environment)},
        "cells": [_cell_as_json(changes, cell) for cell in changes.cells],
        "gone": [
            {"layout": layout, "intermediate": name or None} for layout, name in changes.gone
        ],
        "new": [{"layout": layout, "intermediate": name or None} for layout, name in changes.new],
        "coarser": list(changes.coarser),
        "notes": list(changes.notes),
    }


def _cell_as_json(changes: Changes, cell: BaselineCell) -> dict[str, Any]:
    old, now = (entry.errors[cell.layout][cell.name] for entry in (changes.before, changes.after))
    return {
        "layout": cell.layout,
        "intermediate": cell.name,
        "verdict": cell.verdict,
        "rms": _growth(cell.rms) | {"before": list(old.rms), "after": list(now.rms)},
        "worst": _growth(cell.worst) | {"before": list(old.worst), "after": list(now.worst)},
    }


def _growth(growth: Growth) -> dict[str, Any]:
    return {
        "factor": _number(growth.factor),
        "noise": _number(growth.noise),
        "verdict": growth.verdict,
    }


def together(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of every entry of a file; a mismatch or growth anywhere is one, else an error anywhere is one."""
    verdicts = {document["verdict"] for document in documents}
    verdict = next(known for known in ("mismatch", GROWN, "error", SAME) if known in verdicts)
    return {"schema": SCHEMA, "verdict": verdict, "alarms": ALARMS, "entries": documents}


def _number(value: float) -> float | None:
    """None where it is not finite."""
    return value if math.isfinite(value) else None
