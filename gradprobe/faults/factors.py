"""A: a constant factor of an intermediate, or of the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..model.case import Case
from ..model.intermediates import names
from .hypothesis import Hypothesis, Observed

_UNITS_FIX = {
    "ln 2": "multiply the scores by log2 e = 1.4427 for exp2, or take exp",
    "log2 e": "leave log2 e = 1.4427 out of the scores for exp, or take exp2",
}
# How near a measured factor must be to a constant to be called by its name.
_NEAR = 1e-3
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8


def constants(case: Case) -> dict[str, float]:
    """What backwards are off by, each value once, by name."""
    scale, group, dim = case.scale, case.heads // case.kv_heads, case.head_dim
    found = {
        "2": 2.0, "1/2": 0.5, "-1": -1.0, "ln 2": math.log(2), "log2 e": 1 / math.log(2),
        "scale": scale, "1/scale": 1 / scale if scale else 1.0, "sqrt(D)": math.sqrt(dim),
        "1/sqrt(D)": 1 / math.sqrt(dim), "D": float(dim), "1/D": 1 / dim,
        "the group's size": float(group), "1 over the group's size": 1 / group, "scale^2": scale**2,
        "1 - p": 1 - case.dropout, "1 / (1 - p)": 1 / (1 - case.dropout),
    }  # fmt: skip
    kept: dict[str, float] = {}
    for words, factor in found.items():
        if factor != 1.0 and not _called(factor, kept, 1e-9):
            kept[words] = factor
    return kept


def _called(factor: float, named: Mapping[str, float], share: float) -> str:
    """The name of a constant; "" of one that has none."""
    return next((words for words, other in named.items() if abs(factor - other) <= share * abs(other)), "")


def factors(seen: Observed) -> Iterator[Hypothesis]:
    """Every step, and the scores, times each usual constant; and times the factor that a step itself shows."""
    named = constants(seen.case)
    for step in sorted(filter(seen.case.exists, names()), key=lambda name: name in ("LSE", "O")):
        for words, factor in named.items():
            # LSE is no product of what backwards are off by, but it may be in other units.
            if step != "LSE" or words in ("-1", *_UNITS_FIX):
                yield _of_steps(seen, (step,), words, factor, named)
        measured = _measured(seen, step)
        if measured is not None and not _called(measured, named, _NEAR):
            yield _of_steps(seen, (step,), "", measured, named)
    others = [name for name in ("bias", "alibi", "softcap") if getattr(seen.x, name) is not None]
    for words, factor in named.items():
        for both in (("dQ", "dK"), ("dK", "dV")):
            if set(both) <= set(seen.own):
                yield _of_steps(seen, both, words, factor, named)
        yield _of_scores((), words, factor)
        if words in _UNITS_FIX:
            summary = f"P is raised to the power {factor:.5g} = {words}: exp and exp2, or their units, are mixed up"
            yield Hypothesis("factor/S", "A", summary, {"P": f"P**{factor} * (P > 0)"}, _UNITS_FIX[words])
            if others:
                yield _of_scores(others, words, factor)


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


def _of_steps(
    seen: Observed, steps: Sequence[str], words: str, factor: float, named: Mapping[str, float]
) -> Hypothesis:
    """The fault that what came of some steps is so many times what is due."""
    together, number, by = " and ".join(steps), f"{factor:.5g}", f"{1 / factor:.5g}"
    inverse = _called(1 / factor, named, 1e-9)
    why, fix = "", f"multiply {together} by {by}" + (f" = {inverse}" if inverse not in ("", by) else "")
    if not words:
        fix = ""
    elif words == "-1":
        why, fix = ": its sign is the other", f"negate {together}"
    elif steps[0] in ("dQ", "dK", "dS") and words == "1/scale":
        why, fix = ": the scale is missing", f"multiply {'dQ and dK' if steps[0] == 'dS' else steps[0]} by scale"
    elif steps[0] in ("dQ", "dK", "dS") and words == "scale":
        why, fix = ": the scale is applied twice", "apply the scale once"
    elif words in _UNITS_FIX:
        why = ": units of log2 and of ln are mixed"
        if steps[0] == "LSE" and words == "ln 2" and "lse" in seen.tensors:
            # What is given to be read may be meant so.
            fix = "multiply LSE by log2(e) = 1.4427; if it is meant to come to base 2, check it with --lse-as log2"
    called = f"{number} = {words}" if words not in ("", number) else number
    summary = f"{together} {'are' if steps[1:] else 'is'} off by the factor {called} throughout{why}"
    made = {step: f"{step} * {factor!r}" for step in steps}
    return Hypothesis(f"factor/{steps[0]}", "A", summary, made, fix)


def _of_scores(others: Sequence[str], words: str, factor: float) -> Hypothesis:
    """The fault that scores have another scale; the gradients are multiplied by the right one."""
    what = f"the scores and {' and '.join(others)} are" if others else "the scores are"
    summary = f"{what} off by the factor {factor:.5g} = {words}"
    made = {of: f"{of} / {factor!r}" for of in ("dQ", "dK")}
    reads = {name: f"{name} * {factor!r}" for name in ("scale", *others)}
    return Hypothesis("factor/S", "A", summary, made, _UNITS_FIX.get(words, ""), ("LSE", "P", "O"), reads=reads)
