"""The line of a target without kernels in which a named fault first shows."""

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from ..faults.hypothesis import Hypothesis, WrongRun
from ..faults.index import readable
from ..faults.variant import BUFFERS, Variant, plain_variant
from ..frontends.python.traces import Event, followed
from ..inputs.memory import Array
from ..model.report import CauseLine, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment, inputs_of
from ..reference import tiles
from ..runtime.run import run_target
from ..source.kernel_file import python_file
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
_INPUTS = {"q": "bhmd", "k": "bhnd", "v": "bhne", "do": "bhme"}
_RESULTS = {"O": "bhme", "dQ": "bhmd", "dK": "bhnd", "dV": "bhne"}
_AXES = dict.fromkeys(("S", "P", "PE", "Z", "dPE", "dP", "dS"), "bhmn")
_AXES |= {"LSE": "bhm", "delta": "bhm"} | _RESULTS


def with_python_lines(
    experiment: Experiment,
    run: LayoutRun,
    seen: WrongRun,
    found: Sequence[Diagnosis],
    named: Mapping[str, Hypothesis],
) -> list[Diagnosis]:
    """Where there is no cause, whether it computes in few bits."""
    causes = causes_among(found)
    if not _is_followed(experiment) or (causes and not named):
        return [*found]
    held, placed = _events(experiment, run), list[Diagnosis]()
    if not causes:
        return [*_narrow(held, seen), *found]
    for diagnosis in found:
        of = None if diagnosis.where else named.get(diagnosis.fault)
        at = _line(of, experiment.target, held, seen) if of is not None else None
        placed.append(diagnosis if at is None else structs.replace(diagnosis, where=(at,)))
    return placed


def _is_followed(experiment: Experiment) -> bool:
    case = experiment.case
    is_other = experiment.backends or case.ranks or case.cu_seqlens_q or case.device != "cpu"
    is_small = case.heads == case.kv_heads and case.scores <= _MOST_SCORES
    return not is_other and is_small and case.dtype == "float32"


def _events(experiment: Experiment, run: LayoutRun) -> Sequence[Event]:
    assert run.measured is not None
    target = experiment.target
    with followed(target.function) as held:
        trace = run_target(target, experiment.case, inputs_of(experiment, run.assigned)).trace
    for name, value in run.measured.raw.values.items():
        if trace is None or not torch.equal(trace.values.get(name, torch.empty(0)), value):
            return ()
    return held


def _narrow(held: Sequence[Event], seen: WrongRun) -> Iterator[Diagnosis]:
    first = next((event for event in held if event.dtype not in _TOLERANCES), None)
    for name in seen.wrong_names:
        expected = seen.expected[name]
        if not (seen.actual[name] - expected).abs().max() <= _COARSE * expected.abs().max():
            return
    if first is not None:
        summary = f"it computes in {first.dtype}, and has its rounding errors"
        about, where = (f"precision/{first.dtype}", "PREC", summary, 1.0, ()), (first.at,)
        yield Diagnosis(*about, where, "compute in float32")


# --- where a hypothesis shows


def _line(
    of: Hypothesis, target: Target, held: Sequence[Event], seen: WrongRun
) -> CauseLine | None:
    if of.kind in ("swap", "twice"):  # of parameters, or of results
        returns = [] if of.reads else _lines(target, lambda node: isinstance(node, ast.Return))
        lines = [target.source.line] if of.reads else returns
        return _at(target, max(lines)) if lines else None
    if "do" in of.reads and (calls := _lines(target, _is_differentiated)):
        return _at(target, max(calls))
    first, forms = next(iter(of.made), ""), _Forms(of, seen)
    late, maybe = None, list[CauseLine]()
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
    # A number, and no tensor.
    if len(assigned) == 1 and assigned[0] not in map(attrgetter("at.line"), held):
        return _at(target, assigned[0])
    before = [at for at in maybe if late is not None and at.line != late.line]
    return before[-1] if before else late


def _lines(target: Target, is_meant: Callable[[Any], bool]) -> list[int]:
    meant = filter(is_meant, statements_of(target.function))
    return [getattr(node, "lineno", 0) for node in meant]


def _at(target: Target, line: int) -> CauseLine | None:
    at, text = target.source, python_file(target.source.file).lines
    return CauseLine(at.file, line, text[line - 1].strip(), kernel=at.name) if text else None


def _is_differentiated(node: Any) -> bool:
    call = node.func if isinstance(node, ast.Call) else None
    return isinstance(call, ast.Attribute) and call.attr in ("backward", "grad")


def _assigned(node: Any) -> str:
    name = node.targets[0] if isinstance(node, ast.Assign) else None
    return intermediate_named(name.id) if isinstance(name, ast.Name) else ""


# --- forms


@dataclass(frozen=True, eq=False)
class _Form:
    name: str
    axes: str
    values: Array
    is_wrong: bool = False
    factor: float = 0.0  # of what is due, or 0


class _Forms:
    def __init__(self, of: Hypothesis, seen: WrongRun) -> None:
        self._x = seen.x
        self._shelves: dict[tuple[int, ...], tuple[list[_Form], Array]] = {}
        plain = plain_variant(seen.x, readable(seen))
        due = _whole(plain, {})
        self._forms = [_Form(name, _AXES[name], _finite(values)) for name, values in due.items()]
        self._forms += self._steps(due)
        due_by_key = _subtracted(due)
        for way in _ways(of, plain, seen):
            for name, values in way.items():
                self._add_wrong(name, _finite(values), _finite(due[name]))
            self._add_wrong("delta", _subtracted(way), due_by_key, "bhn")

    def _steps(self, due: Mapping[str, Array]) -> Iterator[_Form]:
        x, p, rows = self._x, due["P"], due["delta"][..., None]
        for name, axes in _INPUTS.items():
            yield _Form(name, axes, getattr(x, name).numpy())
        scores = (x.q @ x.k.mT).numpy()
        yield _Form("", "bhmn", scores)
        if x.softcap is not None:
            yield _Form("", "bhmn", x.softcap * np.tanh(x.scale * scores / x.softcap))
        for dp in (due["dP"], due["dPE"]):
            yield _Form("", "bhmn", p * dp)
            yield _Form("", "bhmn", dp - rows)

    def _add_wrong(self, name: str, values: Array, due: Array, axes: str = "") -> None:
        room = _TOLERANCES["float64"] * max(np.abs(due).max(), np.abs(values).max())
        if np.abs(values - due).max() > room:
            factor = float((values * due).sum() / max((due * due).sum(), 1e-300))
            is_multiple = np.abs(values - factor * due).max() <= room
            factor = factor if is_multiple else 0.0
            self._forms.append(_Form(name, axes or _AXES[name], values, True, factor))

    def wrong(self, event: Event) -> tuple[str, bool]:
        """The intermediate by the fault, or ""; and whether it may be due."""
        flat, tolerance = _finite(event.array).reshape(-1), _TOLERANCES.get(event.dtype, _COARSE)
        if np.count_nonzero(flat) < _FEWEST:
            return "", False
        forms, rows = self._shelf(event.array.squeeze().shape)
        squares, matching = (rows * rows).sum(1), list[_Form]()
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


def _subtracted(values: Mapping[str, Array]) -> Array:
    """[B, H, N], what dS subtracts from dP of each key, in the last row that sees it."""
    seen = values["P"] > 0
    last = seen.shape[2] - 1 - seen[:, :, ::-1].argmax(2, keepdims=True)
    p = np.take_along_axis(values["P"], last, 2)[:, :, 0]
    dp = np.take_along_axis(values["dP"], last, 2)[:, :, 0]
    ds = np.take_along_axis(values["dS"], last, 2)[:, :, 0]
    return dp - ds / np.where(p > 0, p, np.inf)


def _parts(form: _Form, shape: tuple[int, ...]) -> Iterator[Array]:
    values, every = form.values, range(form.values.ndim)
    for order in itertools.permutations(every, len(shape)):
        short = [at for at, axis in enumerate(order) if shape[at] != values.shape[axis]]
        if len(short) > 1 or any(form.axes[order[at]] not in "mn" for at in short):
            continue
        others = sorted({*every} - {*order})
        moved = values.transpose([*others, *order])
        for at in short:
            axis, size = len(others) + at, shape[at]
            starts = range(0, moved.shape[axis] - size + 1, size)
            moved = np.array([moved.take(range(start, start + size), axis) for start in starts])
        yield moved


def _ways(of: Hypothesis, plain: Variant, seen: WrongRun) -> Iterator[dict[str, Array]]:
    variant = of.variant(plain)
    yield (first := _whole(variant, {}))
    if "LSE" in of.changes:
        yield _whole(plain, {"LSE": torch.from_numpy(first["LSE"])})
    for names in (BUFFERS, ("delta",), ("O", "delta")):
        due = {name: seen.expected[name] for name in names if name in seen.expected}
        yield _whole(variant, due)


def _whole(variant: Variant, buffers: Mapping[str, Tensor]) -> dict[str, Array]:
    found = dict[str, list[Array]]()
    for tile in tiles(variant):
        part = variant.on(tile, buffers)
        for name in filter(part.__contains__, _AXES):
            found.setdefault(name, []).append(part[name].numpy())
    return {name: np.stack(parts) for name, parts in found.items()}


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array) & (array > _HIDDEN), array, 0.0)
