"""A, H1: results that are a constant times what is due, that are 0, or that stand in one another's place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, names
from ..model.number import listed
from .hypothesis import Hypothesis, Observed

_UNITS_FIX = {
    "ln 2": "multiply the scores by log2 e = 1.4427 for exp2, or take exp",
    "log2 e": "leave log2 e = 1.4427 out of the scores for exp, or take exp2",
}
# How near a measured factor must be to a constant to be called by its name.
_NEAR = 1e-3
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8


def zeros(seen: Observed) -> Iterator[Hypothesis]:
    """Gradients that are 0 throughout, together where there are several: one kernel may have left them."""
    found = [name for name in GRADIENT_OF.values() if name in seen.own and not bool(seen.actual[name].any())]
    if found:
        are = "are" if len(found) > 1 else "is"
        summary = f"{listed(found)} {are} 0 throughout: nothing was stored there, or None was returned"
        made = {name: f"{name} * 0" for name in found}
        yield Hypothesis(f"zero/{found[0]}", "H1", summary, made, is_plain=True)


def exchanged(seen: Observed) -> Iterator[Hypothesis]:
    """One gradient in another's place, too or instead."""
    for pair in combinations([name for name in ("dQ", "dK", "dV") if name in seen.actual], 2):
        if seen.actual[pair[0]].shape != seen.actual[pair[1]].shape:
            continue
        # Only the one that is wrong stands where the other belongs.
        here, of = sorted(pair, key=seen.wrong, reverse=True) if not all(map(seen.wrong, pair)) else pair
        places, fault = {here: of}, f"twice/{of}"
        summary = f"{of} stands in the place of {here} too"
        if seen.wrong(of):
            places[of], fault = here, f"swap/{here}-{of}"
            summary = f"{here} and {of} have changed places"
        fix, finish = "return each gradient in its own place", partial(_placed, places)
        yield Hypothesis(fault, "H1", summary, {}, fix, tuple(places), finish=finish)


def _placed(places: Mapping[str, str], values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {here: values[of] for here, of in places.items()} if {*places.values()} <= values.keys() else {}


def factors(seen: Observed) -> Iterator[Hypothesis]:
    """Every step, and the scores, times each usual constant; and times the factor that a step itself shows."""
    named = _constants(seen.case)
    for step in sorted(filter(seen.case.exists, names()), key=lambda name: name in ("LSE", "O")):
        for words, factor in named.items():
            # LSE is no product of what backwards are off by, but it may be in other units.
            if step != "LSE" or words in ("-1", *_UNITS_FIX):
                yield _of_step(seen, step, words, factor, named)
        measured = _measured(seen, step)
        if measured is not None and not _called(measured, named, _NEAR):
            yield _of_step(seen, step, "", measured, named)
    others = [name for name in ("bias", "alibi", "softcap") if getattr(seen.x, name) is not None]
    for words, factor in named.items():
        yield _of_scores((), words, factor)
        if words in _UNITS_FIX:
            summary = f"P is raised to the power {factor:.5g} = {words}: exp and exp2, or their units, are mixed up"
            yield Hypothesis("factor/S", "A", summary, {"P": f"P**{factor} * (P > 0)"}, _UNITS_FIX[words])
            if others:
                yield _of_scores(others, words, factor)


def _constants(case: Case) -> dict[str, float]:
    """What backwards are off by, each value once, by name."""
    found = {"2": 2.0, "1/2": 0.5, "-1": -1.0, "ln 2": math.log(2), "log2 e": 1 / math.log(2)}
    sizes = {
        "scale": case.scale,
        "sqrt(D)": math.sqrt(case.head_dim),
        "D": case.head_dim,
        "group": case.heads // case.kv_heads,
        "scale^2": case.scale**2,
        "(1 - p)": 1 - case.dropout,
    }
    for words, size in sizes.items():
        found |= {words: float(size), f"1/{words}": 1 / size if size else 1.0}
    kept = dict[str, float]()
    for words, factor in found.items():
        if factor != 1.0 and not _called(factor, kept, 1e-9):
            kept[words] = factor
    return kept


def _called(factor: float, named: Mapping[str, float], share: float) -> str:
    """The name of a constant; "" of one that has none."""
    return next((words for words, other in named.items() if abs(factor - other) <= share * abs(other)), "")


def _measured(seen: Observed, step: str) -> float | None:
    """The factor of an exposed intermediate where it is wrong, by least squares; None where there is none."""
    if step not in seen.actual or step not in seen.own:
        return None
    wrong = ~seen.right[step] & seen.actual[step].isfinite()
    if int(wrong.sum()) < _FEWEST:
        return None
    actual, expected = seen.actual[step][wrong], seen.expected[step][wrong]
    squares = float((expected**2).sum())
    factor = float((actual * expected).sum()) / squares if squares else 0.0
    return factor if abs(factor) > 1e-6 and abs(factor - 1) > _NEAR else None


def _of_step(seen: Observed, step: str, words: str, factor: float, named: Mapping[str, float]) -> Hypothesis:
    """The fault that what came of a step is so many times what is due."""
    number, by = f"{factor:.5g}", f"{1 / factor:.5g}"
    inverse, is_scaled = _called(1 / factor, named, 1e-9), step in ("dQ", "dK", "dS")
    why, fix = "", f"multiply {step} by {by}" + (f" = {inverse}" if inverse not in ("", by) else "")
    if not words:
        fix = ""
    elif words == "-1":
        fix = f"negate {step}"
    elif is_scaled and words == "1/scale":
        why, fix = ": the scale is missing", f"multiply {'dQ and dK' if step == 'dS' else step} by scale"
    elif is_scaled and words == "scale":
        why, fix = ": the scale is applied twice", "apply the scale once"
    elif step == "LSE" and words == "ln 2" and "lse" in seen.tensors:
        # What is given to be read may be meant so.
        fix = "multiply LSE by log2(e) = 1.4427; if it is meant to come to base 2, check it with --lse-as log2"
    called = f"{number} = {words}" if words not in ("", number) else number
    summary = f"{step} is off by the factor {called} throughout{why}"
    return Hypothesis(f"factor/{step}", "A", summary, {step: f"{step} * {factor!r}"}, fix)


def _of_scores(others: Sequence[str], words: str, factor: float) -> Hypothesis:
    """The fault that scores have another scale; the gradients are multiplied by the right one."""
    what = f"the scores and {' and '.join(others)} are" if others else "the scores are"
    summary = f"{what} off by the factor {factor:.5g} = {words}"
    made = {of: f"{of} / {factor!r}" for of in ("dQ", "dK")}
    reads = {name: f"{name} * {factor!r}" for name in ("scale", *others)}
    return Hypothesis("factor/S", "A", summary, made, _UNITS_FIX.get(words, ""), ("LSE", "P", "O"), reads=reads)
