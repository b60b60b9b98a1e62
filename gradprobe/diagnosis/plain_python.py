"""The expression of a target without kernels in which a named fault first shows."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from ..faults.hypothesis import Hypothesis, WrongRun
from ..faults.index import readable
from ..faults.variant import BUFFERS, Variant, plain_variant
from ..frontends.python.traces import Event, followed
from ..inputs.memory import Array
from ..model.mechanisms import door
from ..model.report import CauseLine, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment, inputs_of
from ..reference import tiles
from ..runtime.run import run_target
from ..source.kernel_file import python_file
from ..targets.bind import statements_of
from ..targets.find import Target

# Scores of a case up to which what its expressions hold is copied.
_MOST_SCORES = 1 << 16
# How far a value may be from a form, as a share of its largest number: sums of a few dozen numbers err by far less.
# These were chosen, and only place what the budgets of `compare` have found wrong.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-4}
_COARSE, _NEAR = 3e-2, 1e-3
# What is lower stands for minus infinity in scores; fewer numbers than these may be anything.
_HIDDEN, _FEWEST = -1e4, 4
_NAMES = ("S", "P", "PE", "Z", "dPE", "dP", "dS", "LSE", "delta", "O", "dQ", "dK", "dV")


@door("plain-python", lambda experiment, run, seen, found, named: [*found])
def with_python_lines(
    experiment: Experiment,
    run: LayoutRun,
    seen: WrongRun,
    found: Sequence[Diagnosis],
    named: Mapping[str, Hypothesis],
) -> list[Diagnosis]:
    """The diagnoses with their lines; where there is none, whether it computes in few bits."""
    causes, case = causes_among(found), experiment.case
    is_small = case.heads == case.kv_heads and case.scores <= _MOST_SCORES
    is_plain = not (experiment.backends or case.ranks or case.cu_seqlens_q)
    is_followed = is_small and is_plain and (case.device, case.dtype) == ("cpu", "float32")
    if not is_followed or (causes and not named):
        return [*found]
    held, placed = _events(experiment, run), list[Diagnosis]()
    if not causes:
        return [*_narrow(held, seen), *found]
    for diagnosis in found:
        of = None if diagnosis.where else named.get(diagnosis.fault)
        at = _line(of, experiment.target, held, seen) if of is not None else None
        placed.append(diagnosis if at is None else structs.replace(diagnosis, where=(at,)))
    return placed


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
    """Where it first computes in few bits, if nothing but rounding is wrong."""
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
        return _at(target, target.source.line) if of.reads else where_it_returns(target)
    if "do" in of.reads and (calls := _lines(target, _is_differentiated)):
        return _at(target, max(calls))
    forms = _Forms(of, seen)
    return next((event.at for event in held if forms.is_wrong(event)), None)


def where_it_returns(target: Target) -> CauseLine | None:
    returns = _lines(target, lambda node: isinstance(node, ast.Return))
    return _at(target, max(returns)) if returns else None


def _lines(target: Target, is_meant: Callable[[Any], bool]) -> list[int]:
    meant = filter(is_meant, statements_of(target.function))
    return [getattr(node, "lineno", 0) for node in meant]


def _at(target: Target, line: int) -> CauseLine | None:
    at, text = target.source, python_file(target.source.file).lines
    return CauseLine(at.file, line, text[line - 1].strip(), kernel=at.name) if text else None


def _is_differentiated(node: Any) -> bool:
    call = node.func if isinstance(node, ast.Call) else None
    return isinstance(call, ast.Attribute) and call.attr in ("backward", "grad")


# --- forms


class _Form(NamedTuple):
    values: Array
    is_wrong: bool = False
    factor: float = 0.0
    """Of what is due, where it is a multiple of that."""
    usual: tuple[float, ...] = (1.0,)
    """What kernels multiply it by."""

    def shows(self, factor: float) -> bool:
        """Whether that many times its values are wrong, and no usual multiple of what is due."""
        is_wrong, is_due = (
            any(math.isclose(of, each, rel_tol=_NEAR) for each in self.usual)
            for of in (factor, factor * self.factor)
        )
        return is_wrong and not is_due


class _Forms:
    """What expressions may hold: due and wrong values, of all heads or of one."""

    def __init__(self, of: Hypothesis, seen: WrongRun) -> None:
        self._x = seen.x
        plain = plain_variant(seen.x, readable(seen))
        due = _whole(plain, {})
        self._forms = [_Form(values.squeeze()) for values in (*due.values(), *self._steps(due))]
        for way in _ways(of, plain, seen):
            for name, values in way.items():
                self._add_wrong(name, values, due[name])

    def _steps(self, due: Mapping[str, Array]) -> Iterator[Array]:
        x = self._x
        for tensor in (x.q, x.k, x.v, x.do, x.q @ x.k.mT):
            yield tensor.numpy()
        if x.softcap is not None:
            yield (x.softcap * (x.scale * x.q @ x.k.mT / x.softcap).tanh()).numpy()
        for dp in (due["dP"], due["dPE"]):
            yield due["P"] * dp
            yield dp - due["delta"][..., None]

    def _add_wrong(self, name: str, values: Array, due: Array) -> None:
        room = _TOLERANCES["float64"] * max(np.abs(due).max(), np.abs(values).max())
        if np.abs(values - due).max() > room:
            factor = float((values * due).sum() / max((due * due).sum(), 1e-300))
            factor = factor if np.abs(values - factor * due).max() <= room else 0.0
            usual = (1.0, self._x.scale) if name == "dS" else (1.0,)
            self._forms.append(_Form(values.squeeze(), True, factor, usual))

    def is_wrong(self, event: Event) -> bool:
        """Whether a value is one by the fault, and nothing as it is due."""
        flat, tolerance = _finite(event.array).reshape(-1), _TOLERANCES.get(event.dtype, _COARSE)
        matching, shape = list[_Form](), event.array.squeeze().shape
        for form in self._forms if np.count_nonzero(flat) >= _FEWEST else ():
            for part in _parts(form.values, shape):
                factor = float(part @ flat) / max(float(part @ part), 1e-300)
                if np.abs(flat - factor * part).max() > tolerance * np.abs(flat).max():
                    continue
                if form.factor and form.shows(factor):
                    return True
                matching += [] if form.factor else [form]
        return bool(matching) and all(form.is_wrong for form in matching)


def _parts(values: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    turned = [values]
    for axes in ((-1, -2), (1, 2)):
        turned += [values.swapaxes(*axes)] if values.ndim > max(axes) + 1 else []
    for whole in turned:
        if whole.shape[whole.ndim - len(shape) :] == shape:
            yield from np.ascontiguousarray(whole).reshape(-1, math.prod(shape))


def _ways(of: Hypothesis, plain: Variant, seen: WrongRun) -> Iterator[dict[str, Array]]:
    variant = of.variant(plain)
    first = _whole(variant, {})
    yield first
    yield _whole(plain, {"LSE": torch.from_numpy(first["LSE"])})
    for names in (BUFFERS, ("delta",)):
        due = {name: seen.expected[name] for name in names if name in seen.expected}
        yield _whole(variant, due)


def _whole(variant: Variant, buffers: Mapping[str, Tensor]) -> dict[str, Array]:
    found = dict[str, list[Array]]()
    for tile in tiles(variant):
        part = variant.on(tile, buffers)
        for name in filter(part.__contains__, _NAMES):
            found.setdefault(name, []).append(part[name].numpy())
    return {name: _finite(np.stack(parts)) for name, parts in found.items()}


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array) & (array > _HIDDEN), array, 0.0)
