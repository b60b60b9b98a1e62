"""A: one constant factor too many or too few."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, names
from ..model.number import listed
from .hypothesis import Hypothesis, Observed, making
from .variant import Hook, TileScope, Variant, finishing


def constants(case: Case) -> dict[str, float]:
    """What backwards are off by, each value once, by name."""
    scale, group = case.scale, case.heads // case.kv_heads
    found = {
        "2": 2.0, "1/2": 0.5, "-1": -1.0, "ln 2": math.log(2), "log2 e": 1 / math.log(2),
        "scale": scale, "1/scale": 1 / scale if scale else 1.0, "sqrt(D)": math.sqrt(case.head_dim),
        "1/sqrt(D)": 1 / math.sqrt(case.head_dim), "D": float(case.head_dim), "1/D": 1 / case.head_dim,
        "the group's size": float(group), "1 over the group's size": 1 / group, "scale^2": scale**2,
    }  # fmt: skip
    if case.dropout:
        found |= {"1 - p": 1 - case.dropout, "1 / (1 - p)": 1 / (1 - case.dropout)}
    kept: dict[str, float] = {}
    for words, factor in found.items():
        if factor != 1.0 and all(abs(factor - one) > 1e-9 * abs(one) for one in kept.values()):
            kept[words] = factor
    return kept


_FORWARD = ("LSE", "O")
_AT_ONCE = {"dQ": ("dQ", "dK"), "dK": ("dK", "dV")}
_UNITS = ("ln 2", "log2 e", "-1")
# How near a measured factor must be to a constant to be called by its name.
_NEAR = 1e-3
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every step, and the scores, times each usual constant; and times the factor that a step itself shows."""
    named = constants(seen.case)
    for step in sorted(filter(seen.case.exists, names()), key=lambda name: name in _FORWARD):
        # LSE is no product of what backwards are off by, but it may be in other units.
        factors = {words: factor for words, factor in named.items() if step != "LSE" or words in _UNITS}
        measured = _measured(seen, step)
        if measured is not None and all(abs(measured - one) > _NEAR * abs(one) for one in named.values()):
            factors[""] = measured
        for words, factor in factors.items():
            yield _of_step(seen, step, words, factor)
    for words, factor in named.items():
        for first, both in _AT_ONCE.items():
            if set(both) <= set(seen.own):
                yield _of_step(seen, first, words, factor, both)
        yield _of_scores(seen, words, factor)
        if words in ("ln 2", "log2 e"):
            summary = f"P is raised to the power {factor:.5g} = {words}: exp and exp2, or their units, are mixed up"
            yield making("factor/S", "A", summary, {"P": partial(_power, factor)}, fix=_units(words))
        if words in _UNITS[:2] and _added(seen):
            yield _of_scores(seen, words, factor, _added(seen))


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


def _of_step(seen: Observed, step: str, words: str, factor: float, steps: tuple[str, ...] = ()) -> Hypothesis:
    steps = steps or (step,)
    names, verb = " and ".join(steps), "is" if len(steps) == 1 else "are"
    named = f"{factor:.5g} = {words}" if words and words != f"{factor:.5g}" else f"{factor:.5g}"
    why, fix = _reason(step, words, factor, seen)
    summary, fix = (
        f"{names} {verb} off by the factor {named} throughout{why}",
        fix or _inverse(names, words, factor, seen),
    )
    times: Hook = lambda value, scope: value * factor  # noqa: E731
    return making(f"factor/{step}", "A", summary, dict.fromkeys(steps, times), fix=fix)


def _reason(step: str, words: str, factor: float, seen: Observed) -> tuple[str, str]:
    missing = words in ("1/scale", "sqrt(D)") and abs(factor * seen.x.scale - 1) < _NEAR
    if missing and step in ("dQ", "dK", "dS"):
        return ": the scale is missing", f"multiply {'dQ and dK' if step == 'dS' else step} by scale"
    if words == "scale" and step in ("dQ", "dK", "dS"):
        return ": the scale is applied twice", "apply the scale once"
    if words in _UNITS[:2]:
        # What is given to be read may be meant so.
        meant = "multiply LSE by log2(e) = 1.4427; if it is meant to come to base 2, check it with --lse-as log2"
        is_given = step == "LSE" and words == "ln 2" and "lse" in seen.tensors
        return ": units of log2 and of ln are mixed", meant if is_given else ""
    return (": its sign is the other", "") if words == "-1" else ("", "")


def _inverse(names: str, words: str, factor: float, seen: Observed) -> str:
    """The edit that undoes a factor that has a name: what came is so many times what is due."""
    if words in ("", "-1"):
        return f"negate {names}" if words else ""
    by = f"{1 / factor:.5g}"
    named = [
        f" = {other}" for other, one in constants(seen.case).items() if abs(one * factor - 1) < 1e-9 and other != by
    ]
    return f"multiply {names} by {by}{named[0] if named else ''}"


def _of_scores(seen: Observed, words: str, factor: float, added: Mapping[str, Any] | None = None) -> Hypothesis:
    what = "the scores are" if added is None else f"the scores and {' and '.join(added)} are"
    summary, alter = f"{what} off by the factor {factor:.5g} = {words}", partial(_scaled, factor, added or {})
    return Hypothesis("factor/S", "A", summary, alter, frozenset({"LSE", "P", "O"}), fix=_units(words))


def _power(factor: float, value: Tensor, scope: TileScope) -> Tensor:
    return value**factor * (value > 0)


def _added(seen: Observed) -> dict[str, Any]:
    """What enters the scores beside q and k, by its name."""
    options = {name: getattr(seen.x, name) for name in ("bias", "alibi", "softcap")}
    return {name: value for name, value in options.items() if value is not None}


def _units(words: str) -> str:
    if words == "ln 2":
        return "multiply the scores by log2 e = 1.4427 for exp2, or take exp"
    return "leave log2 e = 1.4427 out of the scores for exp, or take exp2" if words == "log2 e" else ""


def _scaled(factor: float, added: Mapping[str, Any], variant: Variant) -> Variant:
    """Scores of another scale; the gradients are multiplied by the right one."""
    back: Hook = lambda value, scope: value / factor  # noqa: E731
    others = {name: value * factor for name, value in added.items()}
    return variant.having(scale=variant.x.scale * factor, **others).hooked(("dQ", back), ("dK", back))


def zeros(seen: Observed) -> Iterator[Hypothesis]:
    """H1: gradients that are 0 throughout, together where there are several: one kernel may have left them."""
    found = [name for name in GRADIENT_OF.values() if name in seen.own and not bool(seen.actual[name].any())]
    if found:
        are, there = (" are", "in them") if len(found) > 1 else (" is", "there")
        summary = f"{listed(found)}{are} 0 throughout: nothing was stored {there}, or None was returned"
        finish = finishing(lambda values: {name: values[name] * 0 for name in found if name in values})
        yield Hypothesis(f"zero/{found[0]}", "H1", summary, finish, frozenset(found), is_plain=True)
