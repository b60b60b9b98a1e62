"""A, DRP, M1: a term of a formula dropped, added or another, of delta, softcap, tau, dropout; a constant factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import names
from ..numerics.declared_precision import softcap_slope
from ..reference.problem import part
from .hypothesis import Hypothesis, Observed, making
from .mask import causal
from .tile import pairs
from .variant import Hook, TileScope, Variant


def _deltas(family: str) -> tuple[Hypothesis, ...]:
    lazy = family == "lazy"
    other = "rowsum(dO * O), which holds tau's share, where rowsum(P * dP) is meant"
    other = other if lazy else "rowsum(P * dP), which differs from rowsum(dO * O) here"
    ds, of_delta = "dS = P * (dP - delta)", f"delta = rowsum({'P * dP' if lazy else 'dO * O'})"
    ways: tuple[tuple[str, str, str, Hook, str], ...] = (
        ("dropped", "is not subtracted: dS = P * dP", "delta", lambda v, t: v * 0, ds),
        ("sign", "is added where it is to be subtracted", "delta", lambda v, t: -v, ds),
        ("unweighted", "is subtracted outside the product: dS = P * dP - delta", "dS",
         lambda v, t: (t.P * t.dP - t.delta[..., None] * t.valid) * softcap_slope(t.x, t.q, t.k), ds),
        ("formula", f"is computed by another formula: {other}", "delta",
         lambda v, t: (t.do * (t.pe @ t.v) if lazy else t.P * t.dP).sum(-1), of_delta),
        ("formula", "is rowsum(dO), without O", "delta", lambda v, t: t.do.sum(-1), of_delta),
        ("formula", "is rowsum(O * O)", "delta", lambda v, t: (t.O**2).sum(-1), of_delta),
        ("formula", "is rowsum(dP), without P", "delta", lambda v, t: t.dP.sum(-1), of_delta),
        ("formula", "is the mean over the head dim, where the sum is meant", "delta",
         lambda v, t: v / t.do.shape[-1], of_delta),
        ("from-unmasked", "sums dP before its mask", "delta", lambda v, t: (t.P * t.dpe).sum(-1), of_delta),
    )  # fmt: skip
    return tuple(
        making(f"delta/{word}", "A", f"delta {words}", {step: hook}, fix, ("delta", "dS"))
        for word, words, step, hook, fix in ways
    )


def _slope(words: str, slope: Callable[[Tensor, float], Tensor | float]) -> Hypothesis:
    """The softcap's derivative as another function of the scores and the softcap."""

    def ds(value: Tensor, t: TileScope) -> Tensor:
        assert t.x.softcap is not None
        return t.P * t.spread * slope(t.x.scale * t.q @ t.k.mT, t.x.softcap)

    fix = "dS = P * (dP - delta) * (1 - tanh(S / softcap)^2)"
    return making("softcap/derivative", "A", f"the softcap's derivative {words}", {"dS": ds}, fix)


_OF_TAU = frozenset({"O", "dP", "delta", "dV", "dTau"})


def _position(words: str, divisor: Callable[[TileScope], Tensor]) -> Iterator[Hypothesis]:
    """tau divided by another number, [m or 1, N or 1], in dTau too and not."""
    hooks: dict[str, Hook] = {
        "O": lambda v, t: t.product("O", t.z(divisor(t)).relu() * t.valid),
        "dP": lambda v, t: t.dpe * (t.valid & (t.z(divisor(t)) > 0)),
        "dV": lambda v, t: t.product("dV", t.z(divisor(t)).relu() * t.valid),
    }
    of_dtau: Hook = lambda v, t: (t.dP / divisor(t)).nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))  # noqa: E731
    summary = f"tau is divided by {words}, where i + 1 is meant"
    for more in ({"dTau": of_dtau}, {}):
        yield making("tau/position", "A", summary, hooks | more, "tau / (i + 1)", _OF_TAU)


def _gradient(words: str, dtau: Hook) -> Hypothesis:
    return making("tau/gradient", "A", f"dTau sums dP {words}", {"dTau": dtau}, "dTau = sum of dP / (i + 1)")


def _below(t: TileScope) -> Tensor:
    """[h, m, N] P + tau / (i + 1) where that is negative: what the ReLU takes away."""
    return t.z() * t.valid - t.pe


_OF_LAZY: tuple[Hypothesis, ...] = (
    *_position("i + 2", lambda t: t.i + 2.0),
    *_position("i", lambda t: t.i + 0.0),
    *_position("the key's j + 1", lambda t: t.j + 1.0),
    *_position("1, which is nothing", lambda t: t.i * 0.0 + 1.0),
    *_position("the length", lambda t: t.i * 0.0 + t.x.n_key),
    *_position("the distance i - j + 1", lambda t: t.i - t.j + 1.0),
    making("relu/mask", "A", "the ReLU's mask is missing in dP: its entries flow where P + tau / (i + 1) <= 0 too",
           {"dP": lambda v, t: t.dpe * t.valid}, "dP = [P + tau / (i + 1) > 0] * (dO V^T)", _OF_TAU),
    making("relu/missing", "A", "the ReLU is left out: P + tau / (i + 1) weighs where it is negative too",
           {"O": lambda v, t: v + _below(t) @ t.v, "dV": lambda v, t: v + _below(t).mT @ t.do},
           "relu(P + tau / (i + 1))"),
    making("relu/sign", "A", "the ReLU's mask of dP is that of P alone: tau is left out of it",
           {"dP": lambda v, t: t.dpe * (t.valid & (t.P > 0))}, changes=_OF_TAU),
    _gradient("without dividing it by i + 1", lambda v, t: t.dP.sum((-2, -1))),
    _gradient("before it is masked", lambda v, t: (t.dpe / (t.i + 1)).sum((-2, -1))),
    _gradient("without the ReLU's mask", lambda v, t: (t.dpe * t.valid / (t.i + 1)).sum((-2, -1))),
)  # fmt: skip


def _dropout(word: str, summary: str, hooks: Mapping[str, Hook]) -> Hypothesis:
    return making(f"dropout/{word}", "DRP", summary, hooks)


def _kept(t: TileScope) -> Tensor:
    """[h, m, N] 1.0 where an entry was kept."""
    assert t.x.keep is not None
    return part(t.x.keep, t.tile).double()


def _unscaled(value: Tensor, t: TileScope) -> Tensor:
    return value * (1 - t.x.dropout)


_TERMS: Mapping[str, tuple[Hypothesis, ...]] = {
    "lazy": _deltas("lazy"),
    "softmax": _deltas("softmax"),
    "softcap": (
        _slope("is missing in dS", lambda s, c: 1.0),
        _slope("is 1 - tanh(S / softcap), not squared", lambda s, c: 1 - (s / c).tanh()),
        _slope("is taken at the capped scores", lambda s, c: 1 - (s / c).tanh().tanh() ** 2),
        _slope("is 1 - T^2, of scores T not divided by the softcap", lambda s, c: 1 - (c * (s / c).tanh()) ** 2),
        _slope("is divided by the softcap once more", lambda s, c: (1 - (s / c).tanh() ** 2) / c),
        _slope("is applied twice", lambda s, c: (1 - (s / c).tanh() ** 2) ** 2),
    ),
    "tau": _OF_LAZY,
    "keep": (
        _dropout("scale", "1 / (1 - p) is missing in dV", {"dV": _unscaled}),
        _dropout("scale", "1 / (1 - p) is missing in dP", {"dP": _unscaled}),
        _dropout("scale", "1 / (1 - p) is missing", {"O": _unscaled, "dV": _unscaled, "dP": _unscaled}),
        _dropout("dv", "dropout is left out of dV: P^T dO of all of P", {"dV": lambda v, t: t.product("dV", t.P)}),
        _dropout("dv", "dV is made of the entries that were kept, and not scaled",
                 {"dV": lambda v, t: t.product("dV", _kept(t) * t.P)}),
        _dropout("dp", "dropout is left out of dP", {"dP": lambda v, t: t.dpe * t.valid}),
        _dropout("ds", "dS is made of P after dropout, where P before it is meant",
                 {"dS": lambda v, t: v * _kept(t) / (1 - t.x.dropout)}),
    ),
}  # fmt: skip
"""By family, and by the input or option without which there is no such term."""


def other_terms(seen: Observed) -> Iterator[Hypothesis]:
    """What the terms of a problem's formulas may have become."""
    for needed, rows in _TERMS.items():
        if needed == seen.x.family or getattr(seen.x, needed, None) is not None:
            yield from rows
    if seen.x.tau is None:
        return
    # tau added behind the causal mask: what is masked weighs tau / (i + 1) where tau > 0, as far as it is visited. The
    # square tiles first, which most kernels compute; others show alike.
    own, *others = pairs(seen.case)
    for m, n in ((0, 0), own, *sorted(others, key=lambda tile: tile[0] != tile[1])):
        words = "the causal mask is applied before tau is added: masked keys weigh tau / (i + 1) where tau > 0"
        words += f", in the tiles of {m} rows and {n} keys that are visited" if m else ""
        yield _beyond_the_mask(words, partial(_weights, m, n))


def _weights(m: int, n: int, t: TileScope) -> Tensor:
    return t.z().relu() * causal(None, m, n)(t.valid, t.x, t.tile)


def _beyond_the_mask(summary: str, weights: Callable[[TileScope], Tensor]) -> Hypothesis:
    hooks: dict[str, Hook] = {
        "O": lambda v, t: t.product("O", weights(t)),
        "dP": lambda v, t: t.dpe * (weights(t) > 0),
        "dV": lambda v, t: t.product("dV", weights(t)),
    }
    fix = "mask the sum: tl.where(valid, relu(P + tau / (i + 1)), 0), and P + tau / (i + 1) > 0 with it"
    return making("tau/mask", "M1", summary, hooks, fix, (*hooks, "dTau"))


def constants(case: Case) -> dict[str, float]:
    """What backwards are off by, each value once, by name."""
    scale, group, dim = case.scale, case.heads // case.kv_heads, case.head_dim
    found = {
        "2": 2.0, "1/2": 0.5, "-1": -1.0, "ln 2": math.log(2), "log2 e": 1 / math.log(2),
        "scale": scale, "1/scale": 1 / scale if scale else 1.0, "sqrt(D)": math.sqrt(dim),
        "1/sqrt(D)": 1 / math.sqrt(dim), "D": float(dim), "1/D": 1 / dim,
        "the group's size": float(group), "1 over the group's size": 1 / group, "scale^2": scale**2,
    }  # fmt: skip
    if case.dropout:
        found |= {"1 - p": 1 - case.dropout, "1 / (1 - p)": 1 / (1 - case.dropout)}
    kept: dict[str, float] = {}
    for words, factor in found.items():
        if factor != 1.0 and not _is_near(factor, kept, 1e-9):
            kept[words] = factor
    return kept


def _is_near(factor: float, named: Mapping[str, float], share: float) -> bool:
    return any(abs(factor - other) <= share * abs(other) for other in named.values())


_FORWARD = ("LSE", "O")
_AT_ONCE = (("dQ", "dK"), ("dK", "dV"))
_UNITS_FIX = {
    "ln 2": "multiply the scores by log2 e = 1.4427 for exp2, or take exp",
    "log2 e": "leave log2 e = 1.4427 out of the scores for exp, or take exp2",
}
# How near a measured factor must be to a constant to be called by its name.
_NEAR = 1e-3
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8


def factors(seen: Observed) -> Iterator[Hypothesis]:
    """Every step, and the scores, times each usual constant; and times the factor that a step itself shows."""
    named = constants(seen.case)
    for step in sorted(filter(seen.case.exists, names()), key=lambda name: name in _FORWARD):
        # LSE is no product of what backwards are off by, but it may be in other units.
        of_step = {words: factor for words, factor in named.items() if step != "LSE" or words in ("-1", *_UNITS_FIX)}
        measured = _measured(seen, step)
        if measured is not None and not _is_near(measured, named, _NEAR):
            of_step[""] = measured
        for words, factor in of_step.items():
            yield _of_steps(seen, (step,), words, factor)
    others = {name: getattr(seen.x, name) for name in ("bias", "alibi", "softcap")}
    others = {name: value for name, value in others.items() if value is not None}
    for words, factor in named.items():
        for both in _AT_ONCE:
            if set(both) <= set(seen.own):
                yield _of_steps(seen, both, words, factor)
        yield _of_scores("the scores are", words, factor, {})
        if words in _UNITS_FIX:
            summary = f"P is raised to the power {factor:.5g} = {words}: exp and exp2, or their units, are mixed up"
            yield making("factor/S", "A", summary, {"P": partial(_power, factor)}, _UNITS_FIX[words])
        if words in _UNITS_FIX and others:
            yield _of_scores(f"the scores and {' and '.join(others)} are", words, factor, others)


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


def _of_steps(seen: Observed, steps: Sequence[str], words: str, factor: float) -> Hypothesis:
    together, verb = " and ".join(steps), "is" if len(steps) == 1 else "are"
    called = f"{factor:.5g} = {words}" if words and words != f"{factor:.5g}" else f"{factor:.5g}"
    why, fix = _reason(steps[0], words, factor, seen)
    summary = f"{together} {verb} off by the factor {called} throughout{why}"
    fix = fix or _undone(together, words, factor, seen)
    return making(f"factor/{steps[0]}", "A", summary, dict.fromkeys(steps, partial(_times, factor)), fix)


def _times(factor: float, value: Tensor, t: TileScope) -> Tensor:
    return value * factor


def _power(factor: float, value: Tensor, t: TileScope) -> Tensor:
    return value**factor * (value > 0)


def _reason(step: str, words: str, factor: float, seen: Observed) -> tuple[str, str]:
    """Why it may be, and the edit where that says it."""
    if step in ("dQ", "dK", "dS"):
        if words in ("1/scale", "sqrt(D)") and abs(factor * seen.x.scale - 1) < _NEAR:
            return ": the scale is missing", f"multiply {'dQ and dK' if step == 'dS' else step} by scale"
        if words == "scale":
            return ": the scale is applied twice", "apply the scale once"
    if words in _UNITS_FIX:
        # What is given to be read may be meant so.
        meant = "multiply LSE by log2(e) = 1.4427; if it is meant to come to base 2, check it with --lse-as log2"
        is_given = step == "LSE" and words == "ln 2" and "lse" in seen.tensors
        return ": units of log2 and of ln are mixed", meant if is_given else ""
    return (": its sign is the other" if words == "-1" else ""), ""


def _undone(together: str, words: str, factor: float, seen: Observed) -> str:
    """The edit that undoes a factor that has a name: what came is so many times what is due."""
    if words in ("", "-1"):
        return f"negate {together}" if words else ""
    by = f"{1 / factor:.5g}"
    known = [other for other, constant in constants(seen.case).items() if abs(constant * factor - 1) < 1e-9]
    return f"multiply {together} by {by}" + (f" = {known[0]}" if known and known[0] != by else "")


def _of_scores(what: str, words: str, factor: float, others: Mapping[str, Any]) -> Hypothesis:
    """The fault that scores have another scale; the gradients are multiplied by the right one."""
    scaled = {name: value * factor for name, value in others.items()}
    back = partial(_times, 1 / factor)

    def alter(variant: Variant) -> Variant:
        return variant.having(scale=variant.x.scale * factor, **scaled).hooked({"dQ": back, "dK": back})

    summary, changes = f"{what} off by the factor {factor:.5g} = {words}", frozenset({"LSE", "P", "O"})
    return Hypothesis("factor/S", "A", summary, alter, changes, _UNITS_FIX.get(words, ""))
