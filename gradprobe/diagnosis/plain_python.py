"""Plain Python followed: the expression of a target without kernels in which a named fault first shows.

What each expression of its file held is compared with the intermediates as they are due, and as the fault makes them:
whole tensors, in any order of axes, and their parts.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from ..faults.hypothesis import Hypothesis, Observed
from ..faults.index import readable
from ..faults.variant import BUFFERS, Variant, plain_variant
from ..frontends import Event, events
from ..frontends.interface import TORCH
from ..inputs.memory import Array
from ..model.mechanisms import door
from ..model.report import Diagnosis, Where, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment, inputs_of
from ..reference import tiles
from ..runtime.run import run_target
from ..source.text import python_file
from ..targets.bind import intermediate_named, statements_of
from ..targets.find import Target

# Scores of a case up to which what its expressions hold is copied.
_MOST_SCORES = 1 << 16
# How far a value may be from a form, as a share of its largest number: sums of a few dozen numbers err by far less.
# These were chosen, and only place what the budgets of `compare` have found wrong.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-4}
_COARSE, _NEAR = 3e-2, 1e-3
# What is lower stands for minus infinity in scores; fewer numbers than these may be anything.
_HIDDEN, _FEWEST = -1e4, 4
_AXES = dict.fromkeys(("S", "P", "PE", "Z", "dPE", "dP", "dS"), "bhmn") | {"LSE": "bhm", "delta": "bhm"}
_RESULTS = {"O": "bhme", "dQ": "bhmd", "dK": "bhnd", "dV": "bhne"}
_AXES |= _RESULTS


@door("plain-python", lambda experiment, run, seen, found, named: [*found])
def with_python_lines(
    experiment: Experiment, run: LayoutRun, seen: Observed, found: Sequence[Diagnosis], named: Sequence[Hypothesis]
) -> list[Diagnosis]:
    """The diagnoses, those that a hypothesis predicts with their line; without any, that it computes in few bits."""
    causes = causes_among(found)
    if not _is_followed(experiment) or (causes and not named):
        return [*found]
    held = _events(experiment, run)
    if not causes:
        return [*_narrow(held, seen), *found]
    lines = {each.fault: _line(each, experiment.target, held, seen) for each in named}
    for number, diagnosis in enumerate(found := [*found]):
        at = lines.get(diagnosis.fault)
        if at is not None and not diagnosis.where:
            found[number] = structs.replace(diagnosis, where=(at,))
    return found


def _is_followed(experiment: Experiment) -> bool:
    """Whether a target starts no kernel, and its case is small, in float32, with a key head for each head."""
    case = experiment.case
    is_plain = not (experiment.backends - {TORCH} or case.ranks or case.cu_seqlens_q) and case.device == "cpu"
    return is_plain and case.dtype == "float32" and case.heads == case.kv_heads and case.scores <= _MOST_SCORES


def _events(experiment: Experiment, run: LayoutRun) -> Sequence[Event]:
    """What its expressions hold in one more call; nothing where that comes to other results."""
    assert run.measured is not None
    target = experiment.target
    with events(target.function, target.source.file) as held:
        trace = run_target(target, experiment.case, inputs_of(experiment, run.assigned)).trace
    for name, value in run.measured.raw.values.items():
        if trace is None or not torch.equal(trace.values.get(name, torch.empty(0)), value):
            return ()
    return held


def _narrow(held: Sequence[Event], seen: Observed) -> Iterator[Diagnosis]:
    """Where it first computes in few bits, if nothing but rounding is wrong."""
    first = next((event for event in held if event.dtype not in _TOLERANCES), None)
    if first is None:
        return
    for name in seen.wrong_names:
        expected = seen.expected[name]
        if not (seen.actual[name] - expected).abs().max() <= _COARSE * expected.abs().max():
            return
    summary = f"it computes in {first.dtype}, and has its rounding errors"
    yield Diagnosis(f"precision/{first.dtype}", "PREC", summary, 1.0, where=(first.at,), fix="compute in float32")


# --- where a hypothesis shows


def _line(of: Hypothesis, target: Target, held: Sequence[Event], seen: Observed) -> Where | None:
    """The expression that first holds what a fault makes; else what makes it by its kind or by its name."""
    if of.kind in ("swap", "twice"):  # of parameters, or of results
        return _at(target, target.source.line) if of.reads else where_it_returns(target)
    if "do" in of.reads and (calls := _lines(target, _is_differentiated)):
        return _at(target, max(calls))
    first, *_ = [*of.made, ""]
    forms, late, maybe = _Forms(of, seen), None, list[Where]()
    for event in held:
        name, is_due = forms.wrong(event)
        if is_due:
            maybe.append(event.at)  # P * dP, on the way to delta, or in the place of dS
        elif name and (name not in _RESULTS or first in ("", *_RESULTS)):
            return event.at
        elif name:
            late = event.at
            break
    assigned = _lines(target, lambda node: _assigned(node) == first != "")
    if len(assigned) == 1 and not any(event.at.line in assigned for event in held):  # a number, and no tensor
        return _at(target, assigned[0])
    before = [at for at in maybe if late is not None and at.line != late.line]
    return before[-1] if before else late


def where_it_returns(target: Target) -> Where | None:
    """The last return of a target's function."""
    returns = _lines(target, lambda node: isinstance(node, ast.Return))
    return _at(target, max(returns)) if returns else None


def _lines(target: Target, is_meant: Callable[[Any], bool]) -> list[int]:
    """Where some nodes stand in a target's own function."""
    return [getattr(node, "lineno", 0) for node in statements_of(target.function) if is_meant(node)]


def _at(target: Target, line: int) -> Where | None:
    text = python_file(target.source.file).lines
    return Where(target.source.file, line, text[line - 1].strip(), kernel=target.source.name) if text else None


def _is_differentiated(node: Any) -> bool:
    call = node.func if isinstance(node, ast.Call) else None
    return isinstance(call, ast.Attribute) and call.attr in ("backward", "grad")


def _assigned(node: Any) -> str:
    """The intermediate that a variable which is assigned is named after."""
    name = node.targets[0] if isinstance(node, ast.Assign) else None
    return intermediate_named(name.id) if isinstance(name, ast.Name) else ""


# --- forms


@dataclass(frozen=True, eq=False)
class _Form:
    """What a value may be, times a constant."""

    name: str
    axes: str
    values: Array
    is_wrong: bool = False
    factor: float = 0.0
    """By which it is off, where it is what is due but for that."""


class _Forms:
    """What expressions of one problem hold, as it is due and as a fault makes it, in any order of axes and in part."""

    def __init__(self, of: Hypothesis, seen: Observed) -> None:
        self._x = x = seen.x
        self._shelves: dict[tuple[int, ...], tuple[list[_Form], Array]] = {}
        """By a shape: the forms that values of it may be a part of, a row each."""
        plain = plain_variant(x, readable(seen))
        variant, due = of.variant(plain), _whole(plain, {})
        right = {name: seen.expected[name] for name in BUFFERS if name in seen.expected}
        self._forms = [_Form(name, _AXES[name], _finite(values)) for name, values in due.items()]
        for name, axes in (("q", "bhmd"), ("k", "bhnd"), ("v", "bhne"), ("do", "bhme")):
            self._forms.append(_Form(name, axes, getattr(x, name).numpy()))
        scores, rows = (x.q @ x.k.mT).numpy(), due["delta"][..., None]
        capped = scores if x.softcap is None else x.softcap * np.tanh(x.scale * scores / x.softcap)
        p, dp, open_dp = due["P"], due["dP"], due["dPE"]
        for values in (scores, capped, p * dp, p * open_dp, dp - rows, open_dp - rows):
            self._forms.append(_Form("", "bhmn", values))
        ways = [_whole(variant, {})]
        if "LSE" in of.changes:  # which alone may be as the fault makes it
            ways.append(_whole(plain, {"LSE": torch.from_numpy(ways[0]["LSE"])}))
        for names in (BUFFERS, ("delta",), ("O", "delta")):  # or all else, of what is right of these
            ways.append(_whole(variant, {name: right[name] for name in names if name in right}))
        for way in ways:
            self._forms += filter(None, (_wrong(name, values, due[name]) for name, values in way.items()))

    def wrong(self, event: Event) -> tuple[str, bool]:
        """The intermediate that a value is as the fault makes it, "" where it is none; and whether it may be due."""
        flat, tolerance = _finite(event.array).reshape(-1), _TOLERANCES.get(event.dtype, _COARSE)
        forms, rows = self._shelf(tuple(size for size in event.array.shape if size != 1))
        squares, matching = (rows * rows).sum(1), list[_Form]()
        if np.count_nonzero(flat) < _FEWEST or not squares.any():
            return "", False
        factors = rows @ flat / np.where(squares > 0, squares, np.inf)
        for at in np.flatnonzero(factors**2 * squares >= (1 - 8 * tolerance) * (flat @ flat)):
            form, factor = forms[at], factors[at]
            if np.abs(flat - factor * rows[at]).max() > tolerance * np.abs(flat).max():
                continue
            if not form.factor:
                matching.append(form)
            elif self._is_usual(form, factor) and not self._is_usual(form, factor * form.factor):
                return form.name, False
        name = next((form.name for form in matching if form.is_wrong), "")
        return name, bool(name) and not all(form.is_wrong for form in matching)

    def _is_usual(self, form: _Form, factor: float) -> bool:
        """Whether code may hold an intermediate times this: dS has its scale in many."""
        scale = self._x.scale if form.name == "dS" else 1.0
        return min(abs(factor - 1), abs(factor - scale)) <= _NEAR * scale

    def _shelf(self, shape: tuple[int, ...]) -> tuple[list[_Form], Array]:
        if shape not in self._shelves:
            size, forms = math.prod(shape), list[_Form]()
            rows = [np.zeros((0, size))]
            for form in self._forms:
                for part in _parts(form, shape):
                    rows.append(np.ascontiguousarray(part).reshape(-1, size))
                    forms += [form] * len(rows[-1])
            self._shelves[shape] = forms, np.concatenate(rows)
        return self._shelves[shape]


def _parts(form: _Form, shape: tuple[int, ...]) -> Iterator[Array]:
    """The parts of a form that have a shape, the axes that they lack first; one axis of rows or keys may be a tile."""
    values = form.values.squeeze()
    axes = [letter for letter, size in zip(form.axes, form.values.shape, strict=True) if size != 1]
    for order in itertools.permutations(range(len(axes)), len(shape)):
        short = [at for at, axis in enumerate(order) if shape[at] != values.shape[axis]]
        if len(short) > 1 or any(axes[order[at]] not in "mn" for at in short):
            continue
        others = [axis for axis in range(len(axes)) if axis not in order]
        moved = values.transpose([*others, *order])
        for at in short:
            axis, size = len(others) + at, shape[at]
            starts = range(0, moved.shape[axis] - size + 1, size)
            moved = np.array([moved.take(range(start, start + size), axis) for start in starts])
        yield moved


def _whole(variant: Variant, buffers: Mapping[str, Tensor]) -> dict[str, Array]:
    """Every intermediate of a problem, [B, H, ...]."""
    parts = [variant.on(tile, buffers) for tile in tiles(variant)]
    return {name: np.stack([part[name].numpy() for part in parts]) for name in _AXES if name in parts[0]}


def _wrong(name: str, values: Array, due: Array) -> _Form | None:
    """What a fault makes of an intermediate; None where that is as due."""
    values, due = _finite(values), _finite(due)
    room = _TOLERANCES["float64"] * max(np.abs(due).max(), np.abs(values).max())
    if np.abs(values - due).max() <= room:
        return None
    factor = float((values * due).sum() / max((due * due).sum(), 1e-300))
    is_multiple = np.abs(values - factor * due).max() <= room
    return _Form(name, _AXES[name], values, True, factor if is_multiple else 0.0)


def _finite(array: Array) -> Array:
    """The array with 0 for what is no number, or stands for minus infinity."""
    return np.where(np.isfinite(array) & (array > _HIDDEN), array, 0.0)
