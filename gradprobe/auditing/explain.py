"""The first wrong formula: what each value of a watched call is, by its numbers, and which mistake explains results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..frontends.python.events import Expression, Value
from ..model.intermediates import PRODUCTS
from ..model.mechanisms import door
from ..reference import Attention
from .form_library import HIDDEN, FormLibrary, Match
from .formulas import DUE, ORDER, Array, Form, Formulas, Mistake, Rewrite, role_of
from .variants import other_scores, variants

# How far a value may be from a form, as a share of its largest number: sums of a few dozen numbers err by far less.
# These were chosen, and only name what the budgets of `compare` have found wrong.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-4}
_COARSE = 3e-2
_NEAR = 1e-3
# What is right where it is made, and a mistake where it is used.
AT_USE = ("softmax/scores", "tau/left-out")
_RESULTS = ("O", "dQ", "dK", "dV")


@dataclass(frozen=True)
class Sight:
    """What an expression of the function was seen to hold: a form times a factor."""

    at: Expression
    form: Form
    factor: float = 1.0
    mask: str | None = None
    """Of masked scores, by which of the masks; "" for the one that is due."""


@dataclass(frozen=True)
class Located:
    """A mistake, and where it first shows."""

    mistake: Mistake
    at: Expression | None
    """None where no value of the function shows it."""
    results: tuple[str, ...] = ()
    """The results that it makes wrong."""
    form: Form | None = None
    """What stands there."""


@dataclass(frozen=True)
class AuditExplanation:
    """Why a call gave wrong results."""

    located: tuple[Located, ...] = ()
    """In the order of the formulas."""
    unexplained: tuple[str, ...] = ()
    """The wrong results that no known mistake gives."""
    holdings: tuple[Sight, ...] = ()
    """What each variable held after each statement, as far as it is known."""
    strange: Expression | None = None
    """Of what is unexplained, the first variable named as an intermediate that holds none."""


@door("audit/explain", lambda x, values, results, wrong, **_: AuditExplanation(unexplained=tuple(wrong)))
def explain(
    x: Attention,
    values: Iterable[Value],
    results: Mapping[str, Array],
    wrong: Iterable[str],
    *,
    by_autograd: bool = False,
    asks_for_mask: bool = True,
) -> AuditExplanation:
    """Why some results are wrong.

    Args:
        values: what the function's expressions held.
        results: what it returned, by intermediate, in [B, H, L, D].
        wrong: the names of those that are.
        by_autograd: whether its gradients are those of its O, so that they inherit what is wrong in that.
        asks_for_mask: whether it is told if there is a mask; else one that it lays by itself is meant.
    """
    with np.errstate(all="ignore"):
        search = _FormSearch(x, asks_for_mask)
        for value in values:
            search.see(value)
        located: dict[Mistake, Located] = {}
        unexplained = []
        for name in wrong:
            reasons = search.reasons(name, results[name])
            if not reasons and by_autograd:
                reasons = next((search.located(one.form) for one in search.sights_of("O")), [])
            if not reasons:
                unexplained.append(name)
            for reason in reasons:
                before = located.get(reason.mistake, reason)
                located[reason.mistake] = replace(before, results=(*before.results, name))
    order = {name: at for at, name in enumerate(DUE)}
    found = sorted(located.values(), key=lambda one: order.get(one.mistake.of, 99))
    strange = next(iter(search.strange.values()), None) if unexplained else None
    return AuditExplanation(tuple(found), tuple(unexplained), tuple(search.holdings), strange)


class _FormSearch:
    """The forms of one problem, and which of them were seen where."""

    def __init__(self, x: Attention, asks_for_mask: bool) -> None:
        b, h, m, d = x.q.shape
        self._x, self._formulas = x, Formulas(x)
        self._rewrites = variants(self._formulas, asks_for_mask=asks_for_mask)
        self._library = FormLibrary({"b": b, "h": h, "m": m, "n": x.n_key, "d": d, "e": x.v.shape[-1]})
        self._library.add(self._formulas.due())
        self._library.add(other_scores(self._formulas).values())
        for rewrite in self._rewrites:
            # Its results at once: loops over elements may hold nothing else.
            kinds = (*_RESULTS, rewrite.step)
            self._library.add(form for form in self._formulas.ways(rewrite) if form.kind in kinds)
        self._followed: list[tuple[Rewrite, ...]] = []
        self._sights: list[Sight] = []
        self._narrow: Value | None = None
        self.holdings: list[Sight] = []
        self.strange: dict[tuple[str, str], Expression] = {}
        """By variable, where it is named as an intermediate and holds none."""

    def see(self, value: Value) -> None:
        """Notes what a value is, and adds what follows from it to the library."""
        if self._narrow is None and value.dtype not in _TOLERANCES:
            self._narrow = value
        hidden = ~(value.array > HIDDEN)
        matches = []
        if hidden.any() and not np.isnan(value.array).any():
            sights = [Sight(value.at, Form("S", "bhmn", value.array, "S"), mask=name) for name in self._masks(hidden)]
        else:
            matches = self._library.matches(value.array, _TOLERANCES.get(value.dtype, _COARSE))
            sights = [Sight(value.at, *match) for match in matches]
        self._sights += sights
        role = role_of(value.at.name)
        if value.at.name and sights:
            self.holdings.append(min(sights, key=lambda one: (len(one.form.mistakes), one.form.kind != role)))
        if role in DUE:
            variable = value.at.function, value.at.name
            self.strange.pop(variable, None)
            if not sights and np.isfinite(value.array).all() and value.array.any():
                self.strange[variable] = value.at
        for form, factor in matches:
            self._follow(value, form, factor)

    def _masks(self, hidden: NDArray[np.bool_]) -> Iterator[str]:
        """Which masks hide so."""
        for name, mask in {"": self._formulas.valid, **self._formulas.masks()}.items():
            if hidden.shape[-2:] == mask.shape[-2:] and (hidden == ~mask[0, 0]).all():
                yield name

    def _follow(self, value: Value, form: Form, factor: float) -> None:
        """Adds what follows from a wrong form, once it is seen; and from delta, or dP, times a factor."""
        formulas = self._formulas
        wrong = tuple(one for one in form.rewrites if one.mistake)
        if form.kind in ("delta", "dP") and not form.mistakes and not _is(abs(factor), 1.0):
            came = f"{form.kind} is {self._by(factor)} of what is due"
            mistake = Mistake(form.kind, f"{form.kind.lower()}/factor", came)
            wrong = (Rewrite(form.kind, formulas.right[form.kind] * factor, mistake),)
            self._sights.append(Sight(value.at, replace(form, mistakes=(mistake,))))
        elif form.kind not in ("P", "O", "dP", "delta", "dS"):
            return
        if wrong in self._followed or not wrong:
            return
        step = max(ORDER.index(one.step) for one in wrong)
        self._library.add(formulas.ways(*wrong))
        self._library.add(formulas.products(*wrong))
        for others in self._followed:
            if all(ORDER.index(other.step) < step for other in others):
                self._library.add(formulas.ways(*others, *wrong))
        self._followed.append(wrong)
        for rewrite in self._rewrites:
            if ORDER.index(rewrite.step) > step:
                self._library.add(form for form in formulas.ways(*wrong, rewrite) if form.kind == rewrite.step)

    def _by(self, factor: float) -> str:
        known = (words for words, number in _constants(self._x).items() if _is(factor, number))
        return next(known, f"{factor:.4g}")

    # --- results

    def reasons(self, name: str, array: Array) -> list[Located]:
        """What makes a result wrong, and where; nothing where nothing known does."""
        if self._narrow is not None and self._is_coarse(name, array):
            came = f"it computes in {self._narrow.dtype}, and has its rounding errors"
            return [Located(Mistake("", "precision", came, "compute in float64"), self._narrow.at)]
        own, others = list[Match](), list[Form]()
        for form, factor in self._library.matches(array, _TOLERANCES["float32"]):
            if form.kind == name:
                own.append((form, factor))
            elif form.kind or form.product is not None:
                others.append(form)
        if own:
            form, factor = min(own, key=lambda one: not _is(one[1], 1.0))
            return self.located(form) + ([] if _is(factor, 1.0) else [self._of_factor(name, factor)])
        return [*self.located(others[0]), self._of_other(name, others[0])] if others else []

    def _is_coarse(self, name: str, array: Array) -> bool:
        """Whether a result is right to 16 bits."""
        matches = self._library.matches(array, _COARSE)
        return any(form.kind == name and not form.mistakes and abs(by - 1) < _COARSE for form, by in matches)

    def _of_factor(self, name: str, factor: float) -> Located:
        scale, at = self._x.scale, self._first(name, factor)
        known = {-1.0: Mistake(name, "sign", f"{name} has the wrong sign")}
        if name in ("dQ", "dK"):
            ignored = f"the scale that is given is not used in {name}, but 1 / sqrt(head dim)"
            twice, left_out = f"the scale is applied to {name} twice", f"the scale is left out of {name}"
            known[self._x.q.shape[-1] ** -0.5 / scale] = Mistake(name, "scale/ignored", ignored, "use it")
            known[scale] = Mistake(name, "scale/twice", twice, f"multiply {name} by it once")
            known[1 / scale] = Mistake(name, "scale/left-out", left_out, f"multiply {name} by the scale")
            if not _is(factor * scale, 1.0):  # where dS has that factor already
                at = self._first("dS", factor * scale) or at
        other = Mistake(name, "factor", f"all of {name} is {self._by(factor)} times what the formula gives")
        return Located(next((known[one] for one in known if _is(factor, one)), other), at)

    def _of_other(self, name: str, form: Form) -> Located:
        """A result that is another one, or a product of other things."""
        product, due = form.product, PRODUCTS.get(name)
        if form.kind or product is None or due is None:
            came = f"what is returned as {name} is {form.words}"
            return Located(Mistake(name, "order", came, "return it under its own name"), None)
        key = "transposed" if product == due.turned else "operand"
        at = next((one.at for one in self._sights if one.form.product == product), None)
        if product.matrix != due.matrix:  # a variable of the right name that holds another matrix comes before it
            held = (one.at for one in self.holdings if one.form.kind == product.matrix)
            at = next((one for one in held if role_of(one.name) == due.matrix), at)
        return Located(Mistake(name, key, f"{name} is made of {product.formula}, not of {due.formula}"), at)

    def sights_of(self, kind: str) -> Iterator[Sight]:
        """Where forms of a kind were seen, the latest first."""
        return (one for one in reversed(self._sights) if one.form.kind == kind and one.mask is None)

    def _first(self, kind: str, factor: float) -> Expression | None:
        """Where a kind was first seen times a factor, of rounded values too."""
        found = [one.at for one in self.sights_of(kind) if f"{one.factor:.3g}" == f"{factor:.3g}"]
        return found[-1] if found else None

    def located(self, form: Form) -> list[Located]:
        """Where the mistakes of a result are made: those in the scores or the mask, where these are made."""
        return [self._located(mistake, form) for mistake in form.mistakes]

    def _located(self, mistake: Mistake, together: Form) -> Located:
        at, first = None, None
        for sight in self._sights:
            is_its = mistake in sight.form.mistakes and set(sight.form.mistakes) <= set(together.mistakes)
            if is_its and not (mistake.key in AT_USE and sight.form.kind in ("P", "PE")):
                at, first = sight.at, sight.form
                break
        if mistake.mask:
            at = next((one.at for one in self._sights if one.mask == mistake.mask), at)
        for sight in self.sights_of("S"):
            factor = sight.factor * (self._x.scale if sight.form.words == "S" else 1.0)
            if mistake.of == "S" and mistake.of_scores is not None and _is(factor, mistake.of_scores):
                return Located(mistake, sight.at, (), first)
        return Located(mistake, at, (), first)


def _is(factor: float, known: float) -> bool:
    return abs(factor - known) <= _NEAR * abs(known)


def _constants(x: Attention) -> dict[str, float]:
    """Factors that have a name."""
    log2e, length, d = math.log2(math.e), x.n_query, x.q.shape[-1]
    found = {"-1": -1.0, "scale": x.scale, "1/scale": 1 / x.scale, "scale^2": x.scale**2}
    found |= {"log2(e)": log2e, "ln 2": 1 / log2e, "scale * log2(e)": x.scale * log2e}
    return found | {f"1/{length} (the length)": 1 / length, f"1/{d} (the head dim)": 1 / d}
