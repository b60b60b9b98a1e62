"""Plain Python followed: the expression of a target without kernels in which a named fault first shows.

What each expression of its file held is compared with the intermediates as they are due, and as the fault makes them:
whole tensors, in any order of axes, and their parts.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    held = _held(experiment, run)
    if not causes:
        return [*_narrow(held, seen), *found]
    lines = {each.fault: _line(each, experiment.target, held, seen) for each in named}
    told = list[Diagnosis]()
    for diagnosis in found:
        at = None if diagnosis.where else lines.get(diagnosis.fault)
        told.append(diagnosis if at is None else structs.replace(diagnosis, where=(at,)))
    return told


def _is_followed(experiment: Experiment) -> bool:
    """Whether a target starts no kernel, and its case is small with a key head for each head."""
    case = experiment.case
    is_plain = not (experiment.backends - {TORCH} or case.ranks or case.cu_seqlens_q)
    return is_plain and case.device == "cpu" and case.heads == case.kv_heads and case.scores <= _MOST_SCORES


def _held(experiment: Experiment, run: LayoutRun) -> Sequence[Event]:
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
    """The expression that first holds what a fault makes; else what makes it by its form or by its name."""
    first, *_ = [*of.made, ""]
    if of.kind == "swap" and of.reads:  # of parameters
        return _at(target, [target.source.line])
    if of.kind in ("swap", "twice"):
        returns = [node.lineno for node in statements_of(target.function) if isinstance(node, ast.Return)]
        return _at(target, returns[:1])
    if "do" in of.reads:
        return _at(target, [*_differentiated(target)])
    forms, late, maybe = _Forms(of, seen), None, None
    with np.errstate(all="ignore"):
        for event in held:
            name, is_due = forms.wrong(event)
            if name and not is_due and (name not in _RESULTS or first in ("", *_RESULTS)):
                return event.at
            if is_due and late is None:
                maybe = event.at  # P * dP, on the way to delta, or in the place of dS
            late = late or (event.at if name and not is_due else None)
    if maybe is not None and late is not None:
        return maybe
    assigned = [*_assigned(target, first)]
    is_held = any(event.at.line in assigned for event in held)  # then it is as due
    return late if is_held or len(assigned) != 1 else _at(target, assigned)


def _at(target: Target, lines: Sequence[int]) -> Where | None:
    text = python_file(target.source.file).lines
    if not lines or max(lines) > len(text):
        return None
    return Where(target.source.file, max(lines), text[max(lines) - 1].strip(), kernel=target.source.name)


def _differentiated(target: Target) -> Iterator[int]:
    """Where autograd is called."""
    for node in statements_of(target.function):
        call = node.func if isinstance(node, ast.Call) else None
        if isinstance(call, ast.Attribute) and call.attr in ("backward", "grad"):
            yield call.lineno


def _assigned(target: Target, intermediate: str) -> Iterator[int]:
    """Where a variable is assigned that bears the name of an intermediate."""
    for node in statements_of(target.function):
        name = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(name, ast.Name) and intermediate and intermediate_named(name.id) == intermediate:
            yield name.lineno


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
        x = seen.x
        (_, _, m, d), (_, _, n, e) = x.q.shape, x.v.shape
        self._scale = x.scale
        self._sizes = {"b": x.n_batch, "h": x.n_heads, "m": m, "n": n, "d": d, "e": e}
        self._shelves: dict[tuple[int, ...], tuple[list[_Form], Array]] = {}
        """By a shape: the forms that values of it may be a part of, a row each."""
        plain = plain_variant(x, readable(seen))
        due = _whole(plain, {})
        self._forms = [_Form(name, _AXES[name], _finite(values)) for name, values in due.items()]
        for name, axes in (("q", "bhmd"), ("k", "bhnd"), ("v", "bhne"), ("do", "bhme")):
            self._forms.append(_Form(name, axes, getattr(x, name).numpy()))
        scores = (x.q @ x.k.mT).numpy()
        open_scores = scores * x.scale
        if x.softcap is not None:
            open_scores = x.softcap * np.tanh(open_scores / x.softcap)
        rows = due["delta"][..., None]
        on_the_way = (
            *(scores, open_scores, due["P"] * due["dP"], due["P"] * due["dPE"]),
            *(due["dP"] - rows, due["dPE"] - rows),
        )
        self._forms += [_Form("", "bhmn", values) for values in on_the_way]
        variant, right = of.variant(plain), {name: seen.expected[name] for name in BUFFERS if name in seen.expected}
        ways = [_whole(variant, {})]
        if "LSE" in of.changes:  # which alone may be as the fault makes it
            ways.append(_whole(plain, {"LSE": torch.from_numpy(ways[0]["LSE"])}))
        for names in (BUFFERS, ("delta",), ("O", "delta")):  # or all else, of what is right of these
            ways.append(_whole(variant, {name: right[name] for name in names if name in right}))
        for values in ways:
            self._forms += filter(None, (_wrong(name, way, due[name]) for name, way in values.items()))

    def wrong(self, event: Event) -> tuple[str, bool]:
        """The intermediate that a value is as the fault makes it, "" where it is none; and whether it may be due."""
        flat, tolerance = _finite(event.array).reshape(-1), _TOLERANCES.get(event.dtype, _COARSE)
        forms, rows = self._shelf(tuple(size for size in event.array.shape if size != 1))
        if np.count_nonzero(flat) < _FEWEST or not forms:
            return "", False
        squares = (rows * rows).sum(1)
        factors = rows @ flat / np.where(squares > 0, squares, np.inf)
        matching = list[_Form]()
        likely = factors**2 * squares >= (1 - 8 * tolerance) * (flat @ flat)
        for at in np.flatnonzero(likely):
            if np.abs(flat - factors[at] * rows[at]).max() <= tolerance * np.abs(flat).max():
                off = forms[at].factor
                if not off:
                    matching.append(forms[at])
                elif self._is_usual(forms[at], factors[at]) and not self._is_usual(forms[at], factors[at] * off):
                    return forms[at].name, False
        name = next((form.name for form in matching if form.is_wrong), "")
        return name, bool(name) and any(not form.is_wrong for form in matching)

    def _is_usual(self, form: _Form, factor: float) -> bool:
        """Whether code may hold an intermediate times this: dS has its scale in many."""
        return any(
            abs(factor - usual) <= _NEAR * usual for usual in ((1.0, self._scale) if form.name == "dS" else (1.0,))
        )

    def _shelf(self, shape: tuple[int, ...]) -> tuple[list[_Form], Array]:
        if shape not in self._shelves:
            size, forms = math.prod(shape), list[_Form]()
            rows = [np.zeros((0, size))]
            for form in self._forms:
                for part in self._parts(form, shape):
                    rows.append(np.ascontiguousarray(part).reshape(-1, size))
                    forms += [form] * len(rows[-1])
            self._shelves[shape] = forms, np.concatenate(rows)
        return self._shelves[shape]

    def _parts(self, form: _Form, shape: tuple[int, ...]) -> Iterator[Array]:
        """The parts of a form that have a shape, the axes that they lack first; else its tiles of rows or keys."""
        axes = "".join(letter for letter, size in zip(form.axes, form.values.shape, strict=True) if size != 1)
        tiled = list[Array]()
        is_whole = False
        for order in itertools.permutations(axes, len(shape)):
            others = [letter for letter in axes if letter not in order]
            short = [at for at, letter in enumerate(order) if shape[at] != self._sizes[letter]]
            if len(short) > 1 or (
                short and (order[short[0]] not in "mn" or shape[short[0]] > self._sizes[order[short[0]]])
            ):
                continue
            moved = form.values.squeeze().transpose([axes.index(letter) for letter in (*others, *order)])
            if not short:
                is_whole = True
                yield moved
                continue
            axis, size = len(others) + short[0], shape[short[0]]
            last = moved.shape[axis] - size
            for start in dict.fromkeys([*range(0, last + 1, size), last]):
                tiled.append(moved.take(range(start, start + size), axis))
        if not is_whole:
            yield from tiled


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
