"""A, DRP: a term of a formula dropped, added or another, of delta, softcap, tau and dropout; a constant factor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..model.case import Case
from ..model.intermediates import names
from .hypothesis import Hypothesis, Observed, pairs
from .variant import Formula

_DS = "dS = P * (dP - delta)"
_OF_TAU = ("O", "dP", "delta", "dV", "dTau")


def _delta(word: str, words: str, formula: str, fix: str, of: str = "delta") -> Hypothesis:
    return Hypothesis(f"delta/{word}", "A", f"delta {words}", {of: formula}, fix, ("delta", "dS"))


def _deltas(fix: str, another: str, formula: str) -> tuple[Hypothesis, ...]:
    return (
        _delta("dropped", "is not subtracted: dS = P * dP", "0 * delta", _DS),
        _delta("sign", "is added where it is to be subtracted", "-delta", _DS),
        _delta("unweighted", "is subtracted outside the product: dS = P * dP - delta",
               "(P * dP - delta[..., None] * valid) * slope", _DS, "dS"),
        _delta("formula", f"is computed by another formula: {another}", formula, fix),
        _delta("formula", "is rowsum(dO), without O", "do.sum(-1)", fix),
        _delta("formula", "is rowsum(O * O)", "(O**2).sum(-1)", fix),
        _delta("formula", "is rowsum(dP), without P", "dP.sum(-1)", fix),
        _delta("formula", "is the mean over the head dim, where the sum is meant", "delta / do.shape[-1]", fix),
        _delta("from-unmasked", "sums dP before its mask", "(P * dpe).sum(-1)", fix),
    )  # fmt: skip


def _slope(words: str, slope: str) -> Hypothesis:
    """The softcap's derivative as another function of T = tanh(S / softcap)."""
    fix = "dS = P * (dP - delta) * (1 - tanh(S / softcap)^2)"
    made: dict[str, Formula] = {"dS": f"P * spread * ({slope})"}
    return Hypothesis("softcap/derivative", "A", f"the softcap's derivative {words}", made, fix)


def _position(words: str, divisor: str) -> Iterator[Hypothesis]:
    """tau divided by another number, [m or 1, n or 1], in dTau too and not."""
    made: dict[str, Formula] = {
        "O": f"product('O', z({divisor}).relu() * valid)",
        "dP": f"dpe * (valid & (z({divisor}) > 0))",
        "dV": f"product('dV', z({divisor}).relu() * valid)",
    }
    of_dtau: dict[str, Formula] = {"dTau": f"(dP / ({divisor})).nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))"}
    summary = f"tau is divided by {words}, where i + 1 is meant"
    for more in (of_dtau, {}):
        yield Hypothesis("tau/position", "A", summary, made | more, "tau / (i + 1)", _OF_TAU)


def _dtau(words: str, dp: str) -> Hypothesis:
    made: dict[str, Formula] = {"dTau": f"({dp}).sum((-2, -1))"}
    return Hypothesis("tau/gradient", "A", f"dTau sums dP {words}", made, "dTau = sum of dP / (i + 1)")


def _dropout(word: str, summary: str, **made: Formula) -> Hypothesis:
    return Hypothesis(f"dropout/{word}", "DRP", summary, made)


_TERMS: Mapping[str, tuple[Hypothesis, ...]] = {
    "lazy": _deltas(
        "delta = rowsum(P * dP)", "rowsum(dO * O), which holds tau's share, where rowsum(P * dP) is meant",
        "(do * (pe @ v)).sum(-1)",
    ),
    "softmax": _deltas(
        "delta = rowsum(dO * O)", "rowsum(P * dP), which differs from rowsum(dO * O) here", "(P * dP).sum(-1)"
    ),
    "softcap": (
        _slope("is missing in dS", "1.0"),
        _slope("is 1 - tanh(S / softcap), not squared", "1 - tanh"),
        _slope("is taken at the capped scores", "1 - tanh.tanh() ** 2"),
        _slope("is 1 - T^2, of scores T not divided by the softcap", "1 - (softcap * tanh) ** 2"),
        _slope("is divided by the softcap once more", "(1 - tanh ** 2) / softcap"),
        _slope("is applied twice", "(1 - tanh ** 2) ** 2"),
        _slope("is 1 - tanh(S)^2, of S not divided by the softcap", "1 - scores.tanh() ** 2"),
    ),
    "tau": (
        *_position("i + 2", "i + 2.0"),
        *_position("i", "i + 0.0"),
        *_position("the key's j + 1", "j + 1.0"),
        *_position("1, which is nothing", "i * 0.0 + 1.0"),
        *_position("the length", "i * 0.0 + n_key"),
        *_position("the distance i - j + 1", "i - j + 1.0"),
        Hypothesis(
            "relu/mask", "A", "the ReLU's mask is missing in dP: its entries flow where P + tau / (i + 1) <= 0 too",
            {"dP": "dpe * valid"}, "dP = [P + tau / (i + 1) > 0] * (dO V^T)", _OF_TAU,
        ),
        Hypothesis(
            "relu/missing", "A", "the ReLU is left out: P + tau / (i + 1) weighs where it is negative too",
            {"O": "product('O', z(i + 1) * valid)", "dV": "product('dV', z(i + 1) * valid)"}, "relu(P + tau / (i + 1))",
        ),
        Hypothesis(
            "relu/sign", "A", "the ReLU's mask of dP is that of P alone: tau is left out of it",
            {"dP": "dpe * (valid & (P > 0))"}, wrong=_OF_TAU,
        ),
        _dtau("without dividing it by i + 1", "dP"),
        _dtau("before it is masked", "dpe / (i + 1)"),
        _dtau("without the ReLU's mask", "dpe * valid / (i + 1)"),
    ),
    "keep": (
        _dropout("scale", "1 / (1 - p) is missing in dV", dV="dV * (1 - dropout)"),
        _dropout("scale", "1 / (1 - p) is missing in dP", dP="dP * (1 - dropout)"),
        _dropout("scale", "1 / (1 - p) is missing", O="O * (1 - dropout)", dV="dV * (1 - dropout)",
                 dP="dP * (1 - dropout)"),
        _dropout("dv", "dropout is left out of dV: P^T dO of all of P", dV="product('dV', P)"),
        _dropout("dv", "dV is made of the entries that were kept, and not scaled",
                 dV="product('dV', P * kept * (1 - dropout))"),
        _dropout("dp", "dropout is left out of dP", dP="dpe * valid"),
        _dropout("ds", "dS is made of P after dropout, where P before it is meant", dS="dS * kept"),
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
    fix = "mask the sum: tl.where(valid, relu(P + tau / (i + 1)), 0), and P + tau / (i + 1) > 0 with it"
    for m, n in ((0, 0), own, *sorted(others, key=lambda tile: tile[0] != tile[1])):
        summary = "the causal mask is applied before tau is added: masked keys weigh tau / (i + 1) where tau > 0"
        summary += f", in the tiles of {m} rows and {n} keys that are visited" if m else ""
        weights = "z(i + 1.0).relu() * visible(causal=False)" + (f" * tile_sees({m}, {n})" if m else "")
        made: dict[str, Formula] = {
            "O": f"product('O', {weights})", "dP": f"dpe * ({weights} > 0)", "dV": f"product('dV', {weights})",
        }  # fmt: skip
        yield Hypothesis("tau/mask", "M1", summary, made, fix, (*made, "dTau"))


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
    for step in sorted(filter(seen.case.exists, names()), key=lambda name: name in ("LSE", "O")):
        measured = _measured(seen, step)
        for words, factor in named.items():
            # LSE is no product of what backwards are off by, but it may be in other units.
            if step != "LSE" or words in ("-1", *_UNITS_FIX):
                yield _of_steps(seen, (step,), words, factor)
        if measured is not None and not _is_near(measured, named, _NEAR):
            yield _of_steps(seen, (step,), "", measured)
    others = [name for name in ("bias", "alibi", "softcap") if getattr(seen.x, name) is not None]
    for words, factor in named.items():
        for both in (("dQ", "dK"), ("dK", "dV")):
            if set(both) <= set(seen.own):
                yield _of_steps(seen, both, words, factor)
        yield _of_scores(seen, (), words, factor)
        if words in _UNITS_FIX:
            summary = f"P is raised to the power {factor:.5g} = {words}: exp and exp2, or their units, are mixed up"
            yield Hypothesis("factor/S", "A", summary, {"P": f"P**{factor} * (P > 0)"}, _UNITS_FIX[words])
        if words in _UNITS_FIX and others:
            yield _of_scores(seen, others, words, factor)


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
    """The fault that what came of some steps is so many times what is due."""
    together, verb, number, by = " and ".join(steps), "is" if len(steps) == 1 else "are", f"{factor:.5g}", 1 / factor
    called = f"{number} = {words}" if words and words != number else number
    inverse = [name for name, constant in constants(seen.case).items() if abs(constant - by) < 1e-9 * abs(by)]
    is_named = inverse and inverse[0] != f"{by:.5g}"
    why, fix = "", f"multiply {together} by {by:.5g}" + (f" = {inverse[0]}" if is_named else "")
    of_scale = steps[0] in ("dQ", "dK", "dS")
    if words in ("", "-1"):
        why, fix = (": its sign is the other", f"negate {together}") if words else ("", "")
    elif of_scale and words in ("1/scale", "sqrt(D)") and abs(factor * seen.x.scale - 1) < _NEAR:
        why, fix = ": the scale is missing", f"multiply {'dQ and dK' if steps[0] == 'dS' else steps[0]} by scale"
    elif of_scale and words == "scale":
        why, fix = ": the scale is applied twice", "apply the scale once"
    elif words in _UNITS_FIX:
        why = ": units of log2 and of ln are mixed"
        if steps[0] == "LSE" and words == "ln 2" and "lse" in seen.tensors:
            # What is given to be read may be meant so.
            fix = "multiply LSE by log2(e) = 1.4427; if it is meant to come to base 2, check it with --lse-as log2"
    summary = f"{together} {verb} off by the factor {called} throughout{why}"
    made: dict[str, Formula] = {step: f"{step} * {factor!r}" for step in steps}
    return Hypothesis(f"factor/{steps[0]}", "A", summary, made, fix)


def _of_scores(seen: Observed, others: Sequence[str], words: str, factor: float) -> Hypothesis:
    """The fault that scores have another scale; the gradients are multiplied by the right one."""
    what = f"the scores and {' and '.join(others)} are" if others else "the scores are"
    summary, made = (
        f"{what} off by the factor {factor:.5g} = {words}",
        {of: f"{of} / {factor!r}" for of in ("dQ", "dK")},
    )
    reads = {name: getattr(seen.x, name) * factor for name in ("scale", *others)}
    return Hypothesis("factor/S", "A", summary, made, _UNITS_FIX.get(words, ""), ("LSE", "P", "O"), reads=reads)
