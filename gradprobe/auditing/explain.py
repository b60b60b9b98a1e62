"""The first wrong formula: what each value of a watched call is, by its numbers, and which mistake explains results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..model.intermediates import PRODUCTS, symbol
from ..model.mechanisms import door
from ..reference import Attention
from ..source.expressions import Expression
from .form_library import HIDDEN, FormLibrary, Match
from .forms import DUE, Array, Form, Mistake, Rewrite, role_of
from .formulas import Formulas
from .variants import other_scores, variants
from .watching import Value

# How far a value may be from a form, as a share of its largest number: sums of a few dozen numbers err by far less.
# These were chosen, and only name what the budgets of `compare` have found wrong.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-4}
_COARSE = 3e-2
_NEAR = 1e-3
# What is right where it is made, and a mistake where it is used.
AT_USE = ("softmax/scores", "tau/left-out")
_RESULTS = ("O", "dQ", "dK", "dV")


@dataclass(frozen=True)
class Located:
    """A mistake, and where it first shows."""

    mistake: Mistake
    at: Expression | None
    """None where no value of the function shows it."""
    results: tuple[str, ...]
    """The results that it makes wrong."""
    form: Form | None = None
    """What stands there."""


@dataclass(frozen=True)
class Sight:
    """What an expression of the function was seen to hold."""

    at: Expression
    words: str = ""
    kind: str = ""
    mistakes: tuple[Mistake, ...] = ()
    form: Form | None = None
    factor: float = 1.0
    """By which the form is multiplied."""
    mask: str | None = None
    """Of masked scores, by which of the masks; "" for the one that is due."""


@dataclass(frozen=True)
class AuditExplanation:
    """Why a call gave wrong results."""

    located: tuple[Located, ...] = ()
    """In the order of the formulas."""
    unexplained: tuple[str, ...] = ()
    """The wrong results that no known mistake gives."""
    holdings: tuple[Sight, ...] = ()
    """What each variable held after each statement, as far as it is known."""
    swapped: tuple[str, str] | None = None
    """Two parameters, each used as the other: with their values exchanged all is right."""
    varies: bool = False
    """Whether another call gave other results, so that nothing can be told of them."""
    strange: Value | None = None
    """Of what is unexplained, the first variable that holds none of what the formulas have."""


@door("audit/explain", lambda x, values, results, wrong: AuditExplanation(unexplained=tuple(wrong)))
def explain(
    x: Attention,
    values: Sequence[Value],
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
    return _Explaining(x, asks_for_mask).explain(values, results, list(wrong), by_autograd)


class _Explaining:
    """The forms of one problem, and which of them were seen where."""

    def __init__(self, x: Attention, asks_for_mask: bool) -> None:
        b, h, m, d = x.q.shape
        self._x, self._formulas = x, Formulas(x)
        self._masks = {"": self._formulas.valid, **self._formulas.masks()}
        self._rewrites = variants(self._formulas, asks_for_mask=asks_for_mask)
        self._library = FormLibrary({"b": b, "h": h, "m": m, "n": x.n_key, "d": d, "e": x.v.shape[-1]})
        self._library.add(self._formulas.due())
        for form, rows in other_scores(self._formulas):
            self._library.add([form, *map(self._formulas.alone, rows)])
        for rewrite in self._rewrites:
            self._library.add([self._formulas.alone(rewrite)] if rewrite.step != "do" else ())
            if len(rewrite.mistakes) == 1:  # its results at once: loops over elements may hold nothing else
                self._library.add(form for form in self._formulas.ways(rewrite) if form.kind in _RESULTS)
        self._followed: list[tuple[Rewrite, ...]] = []
        self._sights: list[Sight] = []
        self._holdings: list[Sight] = []
        self._narrow: Value | None = None
        self._unknown: list[Value] = []

    def explain(
        self, values: Sequence[Value], results: Mapping[str, Array], wrong: list[str], by_autograd: bool
    ) -> AuditExplanation:
        for value in values:
            self._see(value)
        located: dict[Mistake, Located] = {}
        unexplained = []
        for name in wrong:
            mistakes = self._mistakes(name, results[name])
            if not mistakes and by_autograd:
                mistakes = next((one.mistakes for one in self._sights_of("O")), ())
            unexplained += [] if mistakes else [name]
            for mistake in mistakes:
                before = located.get(mistake) or self._located(mistake, frozenset(mistakes))
                located[mistake] = replace(before, results=(*before.results, name))
        order = list(DUE)
        found = sorted(located.values(), key=lambda one: order.index(one.mistake.of) if one.mistake.of in order else 99)
        strange = self._strange(values) if unexplained else None
        return AuditExplanation(tuple(found), tuple(unexplained), tuple(self._holdings), strange=strange)

    # --- values

    def _see(self, value: Value) -> None:
        """Notes what a value is, and adds what follows from it to the library."""
        tolerance = _TOLERANCES.get(value.dtype, _COARSE)
        self._narrow = self._narrow or (value if value.dtype not in _TOLERANCES else None)
        hidden = ~(value.array > HIDDEN)
        if hidden.any() and not np.isnan(value.array).any():
            self._see_masked(value, hidden)
            return
        matches, sights = self._library.matches(value.array, tolerance), []
        for form, factor in ((match.form, match.factor) for match in matches):
            by = self._factor_words(factor)
            sights.append(
                Sight(value.at, f"{by} * {form.words}" if by else form.words, form.kind, form.mistakes, form, factor)
            )
        self._sights += sights
        role = role_of(value.at.name)
        if value.at.name and sights:
            self._holdings.append(min(sights, key=lambda one: (len(one.mistakes), one.kind != role)))
        elif (
            value.at.name and np.isfinite(value.array).all() and value.array.any() and self._library.knows(value.array)
        ):
            self._unknown.append(value)
        for match in matches:
            self._follow(value, match)

    def _see_masked(self, value: Value, hidden: NDArray[np.bool_]) -> None:
        """Masked scores: notes where which mask is laid."""
        for name, mask in self._masks.items():
            if hidden.shape[-2:] == mask.shape[-2:] and (hidden == ~mask[0, 0]).all():
                sight = Sight(value.at, "S, masked otherwise" if name else "S, masked", "S", mask=name)
                self._sights.append(sight)
                self._holdings += [sight] if value.at.name else []

    def _follow(self, value: Value, match: Match) -> None:
        """Adds what follows from a wrong form, once it is seen; and from delta, or dP, times a factor."""
        rewrites, form = match.form.rewrites, match.form
        if form.kind in ("delta", "dP") and not form.mistakes and not _is(abs(match.factor), 1.0):
            by = self._factor_words(match.factor)
            is_mean = form.kind == "delta" and match.factor < 1 and "1/" in by
            words = f"{symbol(form.kind)} is {by} of what is due"
            words = f"delta is a mean, {by} of the sum over the row" if is_mean else words
            mistake = Mistake(form.kind, f"{form.kind.lower()}/factor", words)
            array = form.values * match.factor
            known = (one for one in self._rewrites if one.mistakes == (mistake,))
            rewrites = (next(known, None) or Rewrite(form.kind, lambda v: array, (mistake,)),)
            self._shown(mistake, value.at)
        elif not form.mistakes or form.kind not in ("P", "O", "dP", "delta", "dS"):
            return
        wrong = tuple(one for one in rewrites if one.mistakes)
        if wrong in self._followed or not wrong:
            return
        formulas, order = self._formulas, self._formulas.order
        step = max(order[one.step] for one in wrong)
        self._library.add([*formulas.ways(*wrong), *formulas.products(*wrong)])
        earlier = [one for one in self._followed if all(order[other.step] < step for other in one)]
        for others in earlier:
            self._library.add(formulas.ways(*others, *wrong))
        self._followed.append(wrong)
        for rewrite in self._rewrites:
            if order[rewrite.step] > step:
                self._library.add(form for form in formulas.ways(*wrong, rewrite) if form.kind == rewrite.step)

    def _factor_words(self, factor: float) -> str:
        if _is(factor, 1.0):
            return ""
        return next((words for words, known in self._constants().items() if _is(factor, known)), f"{factor:.4g}")

    def _constants(self) -> dict[str, float]:
        x, log2e = self._x, math.log2(math.e)
        length, d = x.n_query, x.q.shape[-1]
        return {"-1": -1.0, "scale": x.scale, "1/scale": 1 / x.scale, "scale^2": x.scale**2, "ln 2": 1 / log2e,
                 "log2(e)": log2e, f"1/{length} (the length)": 1 / length, f"1/{d} (the head dim)": 1 / d, "1/2": 0.5,
                 "2": 2.0, "scale * log2(e)": x.scale * log2e, "scale * ln 2": x.scale / log2e,
                 f"1/{x.n_batch * x.n_heads * length * d} (the size)": 1 / (x.n_batch * x.n_heads * length * d),
                 f"sqrt({d} / {length}), the head dim's by the length's scale": (d / length) ** 0.5,
                 f"1/{x.n_batch} (the batches)": 1 / x.n_batch, f"1/{x.n_heads} (the heads)": 1 / x.n_heads,
                 "-scale": -x.scale, "-1/scale": -1 / x.scale, "sqrt(scale)": x.scale**0.5}  # fmt: skip

    # --- results

    def _mistakes(self, name: str, array: Array) -> tuple[Mistake, ...]:
        """What makes a result wrong; () where nothing known does."""
        if self._narrow is not None and self._is_coarse(name, array):
            words = f"it computes in {self._narrow.dtype}, and has its rounding errors"
            return (self._shown(Mistake("", "precision", words, "compute in float64"), self._narrow.at),)
        matches = self._library.matches(array, _TOLERANCES["float32"])
        own = [match for match in matches if match.form.kind == name]
        exact = [match for match in own if _is(match.factor, 1.0)]
        if exact:
            return exact[0].form.mistakes
        if own:
            return (*own[0].form.mistakes, self._of_factor(name, own[0].factor))
        others = (one for one in matches if one.form.product is not None or one.form.kind)
        other = next(others, None)
        return () if other is None else (*other.form.mistakes, self._of_other(name, other.form))

    def _is_coarse(self, name: str, array: Array) -> bool:
        """Whether a result is right to 16 bits."""
        matches = self._library.matches(array, _COARSE)
        return any(one.form.kind == name and not one.form.mistakes and abs(one.factor - 1) < _COARSE for one in matches)

    def _of_factor(self, name: str, factor: float) -> Mistake:
        by, scale, of_scores = self._factor_words(factor), self._x.scale, name in ("dQ", "dK")
        ignored = f"the scale that is given is not used in {name}, but 1 / sqrt(head dim)"
        rows = [
            (1 / scale, "scale/left-out", f"the scale is left out of {name}", f"multiply {name} by the scale"),
            (scale, "scale/twice", f"the scale is applied to {name} twice", f"multiply {name} by it once"),
            (self._x.q.shape[-1] ** -0.5 / scale, "scale/ignored", ignored, "use it"),
        ] * of_scores + [(-1.0, "sign", f"{name} has the wrong sign", "")]
        other = ("factor", f"all of {name} is {by} times what the formula gives", "")
        if "(" in by and by.startswith("1/"):
            other = ("mean", f"{name} is a mean, {by} of the sum", "")
        made = next((row[1:] for row in rows if _is(factor, row[0])), other)
        at = self._first(name, factor)
        if of_scores and not _is(factor * scale, 1.0):  # where dS has that factor already
            at = self._first("dS", factor * scale) or at
        return self._shown(Mistake(name, *made), at)

    def _of_other(self, name: str, form: Form) -> Mistake:
        """A result that is another one, or a product of other things."""
        product, due = form.product, PRODUCTS.get(name)
        if form.kind or product is None or due is None:
            return Mistake(name, "order", f"what is returned as {name} is {form.words}", "return it under its own name")
        key = "transposed" if product == due.turned else "operand"
        at = next((one.at for one in self._sights if one.form is not None and one.form.product == product), None)
        if product.matrix != due.matrix:
            named = (
                sight.at
                for sight in self._holdings
                if role_of(sight.at.name) == due.matrix and sight.kind == product.matrix
            )
            at = next(named, at)
        return self._shown(Mistake(name, key, f"{name} is made of {product.formula}, not of {due.formula}"), at)

    def _shown(self, mistake: Mistake, at: Expression | None) -> Mistake:
        """The mistake, which shows at a place."""
        self._sights += [Sight(at, mistakes=(mistake,))] if at is not None else []
        return mistake

    def _sights_of(self, kind: str) -> Iterator[Sight]:
        """Where forms of a kind were seen, the latest first."""
        return (one for one in reversed(self._sights) if one.form is not None and one.form.kind == kind)

    def _first(self, kind: str, factor: float) -> Expression | None:
        found = [
            one.at for one in self._sights_of(kind) if f"{one.factor:.3g}" == f"{factor:.3g}"
        ]  # of rounded values too
        return found[-1] if found else None

    def _located(self, mistake: Mistake, together: frozenset[Mistake]) -> Located:
        """Where one of the mistakes of a result is made: of one in the scores or the mask, where these are made."""
        shows = [one for one in self._sights if mistake in one.mistakes and together.issuperset(one.mistakes)]
        if mistake.key in AT_USE:
            shows = [one for one in shows if one.form is None or (one.form.kind != "P" and one.form.words != "PE")]
        first = shows[0] if shows else None
        at = first.at if first is not None else None
        if mistake.of_scores is not None and mistake.key.startswith("scale"):
            at = next((one.at for one in self._sights_of("S") if _is(self._of_raw(one), mistake.of_scores)), at)
        elif mistake.mask:
            at = next((one.at for one in self._sights if one.mask == mistake.mask), at)
        return Located(mistake, at, (), first.form if first is not None else None)

    def _of_raw(self, sight: Sight) -> float:
        """By which factor of Q K^T scores were seen."""
        return sight.factor * (self._x.scale if sight.form is not None and sight.form.words == "S" else 1.0)

    def _strange(self, values: Sequence[Value]) -> Value | None:
        """The first variable named as an intermediate that holds none; else the first that holds nothing known."""
        # What is written into later shows only in the end what it holds.
        latest = {(value.at.function, value.at.name): value for value in values}
        final = [value for value in self._unknown if value is latest[value.at.function, value.at.name]]
        named = [value for value in final if role_of(value.at.name) in DUE]
        return next(iter([*named, *(value for value in final if value.array.ndim >= 2)]), None)


def _is(factor: float, known: float) -> bool:
    return abs(factor - known) <= _NEAR * abs(known)
