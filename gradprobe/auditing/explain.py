"""The first wrong formula: what each value of a watched call is, by its numbers, and which mistake explains results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..model.intermediates import PRODUCTS, Product, symbol
from ..model.mechanisms import door
from ..reference import Attention
from ..source.expressions import Expression
from .forms import DUE, Array, Form, Mistake
from .library import HIDDEN, FormLibrary, Match
from .names import role_of
from .variants import Variants
from .watching import Value

# How far a value may be from a form, as a share of its largest number: sums of a few dozen numbers err by far less.
# These were chosen, and only name what the budgets of `compare` have found wrong.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-4}
_COARSE = 3e-2
_NEAR = 1e-3
# What is right where it is made, and a mistake where it is used.
AT_USE = ("softmax/scores", "tau/left-out")


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
class Holding:
    """What a variable holds."""

    at: Expression
    """The variable, after a statement."""
    words: str
    kind: str
    mistakes: tuple[Mistake, ...] = ()

    @property
    def name(self) -> str:
        return self.at.name

    @property
    def line(self) -> int:
        return self.at.line


@dataclass(frozen=True)
class AuditExplanation:
    """Why a call gave wrong results."""

    located: tuple[Located, ...] = ()
    """In the order of the formulas."""
    unexplained: tuple[str, ...] = ()
    """The wrong results that no known mistake gives."""
    holdings: tuple[Holding, ...] = ()
    """What each variable held after each statement, as far as it is known."""
    swapped: tuple[str, str] | None = None
    """Two parameters, each used as the other: with their values exchanged all is right."""
    varies: bool = False
    """Whether another call gave other results, so that nothing can be told of them."""
    strange: Value | None = None
    """Of what is unexplained, the first variable that holds none of what the formulas have."""


@dataclass
class _Places:
    """Where each mistake and each form first showed."""

    of_mistakes: list[tuple[frozenset[Mistake], Expression, Form | None]] = field(default_factory=list)
    of_factor: dict[tuple[str, str], Expression] = field(default_factory=dict)
    of_product: dict[Product, Expression] = field(default_factory=dict)
    of_scores: list[tuple[float, Expression]] = field(default_factory=list)
    of_masks: dict[str, Expression] = field(default_factory=dict)


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
    return _Explaining(x, by_autograd, asks_for_mask).explain(values, results, list(wrong))


class _Explaining:
    def __init__(self, x: Attention, by_autograd: bool, asks_for_mask: bool) -> None:
        self._formulas, self._by_autograd = Variants(x, asks_for_mask=asks_for_mask), by_autograd
        self._of_output: tuple[Mistake, ...] = ()
        b, h, m, d = x.q.shape
        self._library = FormLibrary({"b": b, "h": h, "m": m, "n": x.n_key, "d": d, "e": x.v.shape[-1]})
        self._library.add(self._formulas.right())
        self._library.add(self._formulas.wrong())
        self._places, self._expanded = _Places(), set[int]()
        self._holdings: list[Holding] = []
        self._narrow: Value | None = None
        self._latest: dict[tuple[str, str], Value] = {}
        self._unknown: list[Value] = []

    def explain(self, values: Sequence[Value], results: Mapping[str, Array], wrong: list[str]) -> AuditExplanation:
        for value in values:
            self._see(value)
        located: dict[Mistake, Located] = {}
        unexplained = []
        for name in wrong:
            mistakes = self._mistakes(name, results[name])
            if mistakes is None and self._by_autograd:
                mistakes = self._of_output or None
            if mistakes is None:
                unexplained.append(name)
            for mistake in mistakes or ():
                before = located.get(mistake) or self._located(mistake, frozenset(mistakes or ()))
                located[mistake] = replace(before, results=(*before.results, name))
        order = list(DUE)
        found = sorted(located.values(), key=lambda one: order.index(one.mistake.of) if one.mistake.of in order else 99)
        strange = self._strange() if unexplained else None
        return AuditExplanation(tuple(found), tuple(unexplained), tuple(self._holdings), strange=strange)

    # --- values

    def _see(self, value: Value) -> None:
        tolerance = _TOLERANCES.get(value.dtype, _COARSE)
        self._narrow = self._narrow or (value if value.dtype not in _TOLERANCES else None)
        if self._is_masked(value, tolerance):
            return
        matches = self._library.matches(value.array, tolerance)
        if value.at.name:
            self._latest[value.at.function, value.at.name] = value
            self._hold(value, matches)
        for match in matches:
            self._note(value, match)
        for match in matches:
            self._expand(match)

    def _is_masked(self, value: Value, tolerance: float) -> bool:
        """Whether it is masked scores; notes where a mask is laid."""
        hidden = ~(value.array > HIDDEN)
        if not hidden.any() or np.isnan(value.array).any():
            return False
        formulas, square = self._formulas, value.array.ndim >= 2
        shape = (value.array.shape[-2], value.array.shape[-1]) if square else ()
        for name, mask in {"": formulas.valid, **formulas.masks}.items():
            if square and shape == mask.shape[-2:] and (hidden == ~mask[0, 0]).all():
                self._places.of_masks.setdefault(name, value.at)
                if value.at.name:
                    words = "S, masked" if not name else "S, masked otherwise"
                    self._holdings.append(Holding(value.at, words, "S"))
        return True

    def _hold(self, value: Value, matches: list[Match]) -> None:
        if not matches:
            is_told = np.isfinite(value.array).all() and value.array.any() and self._library.knows(value.array)
            if value.is_last and is_told:
                self._unknown.append(value)
            return
        match = matches[0]
        words = self._in_words(match)
        held = Holding(value.at, words, match.form.kind, match.form.mistakes)
        if held not in self._holdings:
            self._holdings.append(held)

    def _in_words(self, match: Match) -> str:
        factor = self._factor_words(match.factor)
        return f"{factor} * {match.form.words}" if factor else match.form.words

    def _factor_words(self, factor: float) -> str:
        if _is(factor, 1.0):
            return ""
        return next((words for words, known in self._constants().items() if _is(factor, known)), f"{factor:.4g}")

    def _constants(self) -> dict[str, float]:
        x, log2e = self._formulas.x, math.log2(math.e)
        length, d = x.n_query, x.q.shape[-1]
        return {"-1": -1.0, "scale": x.scale, "1/scale": 1 / x.scale, "scale^2": x.scale**2, "ln 2": 1 / log2e,
                 "log2(e)": log2e, f"1/{length} (the length)": 1 / length, f"1/{d} (the head dim)": 1 / d, "1/2": 0.5,
                 "2": 2.0, "scale * log2(e)": x.scale * log2e, "scale * ln 2": x.scale / log2e,
                 f"1/{x.n_batch * x.n_heads * length * d} (the size)": 1 / (x.n_batch * x.n_heads * length * d),
                 f"sqrt({d} / {length}), the head dim's by the length's scale": (d / length) ** 0.5,
                 f"1/{x.n_batch} (the batches)": 1 / x.n_batch, f"1/{x.n_heads} (the heads)": 1 / x.n_heads,
                 "-scale": -x.scale, "-1/scale": -1 / x.scale, "sqrt(scale)": x.scale**0.5}  # fmt: skip

    def _note(self, value: Value, match: Match) -> None:
        """Keeps where a mistake, a factor or a product first showed."""
        places, form = self._places, match.form
        if form.mistakes:
            places.of_mistakes.append((frozenset(form.mistakes), value.at, form))
        if form.kind in DUE:
            places.of_factor.setdefault((form.kind, _key(match.factor)), value.at)
        if form.kind == "O":
            self._of_output = form.mistakes
        if form.product is not None:
            places.of_product.setdefault(form.product, value.at)
        if form.kind == "S":
            by = match.factor * (self._formulas.scale if form.words == "S" else 1.0)
            places.of_scores.append((by, value.at))

    def _expand(self, match: Match) -> None:
        """Adds what follows from a wrong form, once it is seen; and from delta, or dP, times a factor."""
        form = match.form
        if form.kind in ("delta", "dP") and not form.mistakes and not _is(abs(match.factor), 1.0):
            by = self._factor_words(match.factor)
            words = f"{symbol(form.kind)} is {by} of what is due"
            if form.kind == "delta" and match.factor < 1 and "1/" in by:
                words = f"delta is a mean, {by} of the sum over the row"
            mistake = Mistake(form.kind, f"{form.kind.lower()}/factor", words)
            key = hash((form.kind, _key(match.factor)))
            at = self._places.of_factor[form.kind, _key(match.factor)]
            self._places.of_mistakes.append((frozenset([mistake]), at, None))
            form = replace(form, values=form.values * match.factor, mistakes=(mistake,))
        else:
            key = id(form)
        if form.mistakes and key not in self._expanded:
            self._expanded.add(key)
            self._library.add(self._formulas.derived(form))

    # --- results

    def _mistakes(self, name: str, array: Array) -> tuple[Mistake, ...] | None:
        """What makes a result wrong; None where nothing known does."""
        if self._narrow is not None and self._is_coarse(name, array):
            words = f"it computes in {self._narrow.dtype}, and has its rounding errors"
            made = Mistake("", "precision", words, "compute in float64")
            self._places.of_mistakes.append((frozenset([made]), self._narrow.at, None))
            return (made,)
        matches = self._library.matches(array, _TOLERANCES["float32"])
        own = [match for match in matches if match.form.kind == name]
        for match in own:
            if _is(match.factor, 1.0):
                return match.form.mistakes or None
        for match in own:
            if not _is(match.factor, 1.0):
                return (*match.form.mistakes, self._of_factor(name, match.factor))
        for match in matches:
            if match.form.product is not None or match.form.kind:
                return (*match.form.mistakes, self._of_other(name, match))
        return None

    def _is_coarse(self, name: str, array: Array) -> bool:
        """Whether a result is right to 16 bits."""
        matches = self._library.matches(array, _COARSE)
        return any(one.form.kind == name and not one.form.mistakes and abs(one.factor - 1) < _COARSE for one in matches)

    def _of_factor(self, name: str, factor: float) -> Mistake:
        by = self._factor_words(factor)
        scale = self._formulas.scale
        if name in ("dQ", "dK") and _is(factor, 1 / scale):
            made = Mistake(name, "scale/left-out", f"the scale is left out of {name}", f"multiply {name} by the scale")
        elif name in ("dQ", "dK") and _is(factor, scale):
            made = Mistake(name, "scale/twice", f"the scale is applied to {name} twice", f"multiply {name} by it once")
        elif name in ("dQ", "dK") and _is(factor * scale, self._formulas.x.q.shape[-1] ** -0.5):
            words = f"the scale that is given is not used in {name}, but 1 / sqrt(head dim)"
            made = Mistake(name, "scale/ignored", words, "use it")
        elif _is(factor, -1.0):
            made = Mistake(name, "sign", f"{name} has the wrong sign")
        elif "(" in by and by.startswith("1/"):
            made = Mistake(name, "mean", f"{name} is a mean, {by} of the sum")
        else:
            made = Mistake(name, "factor", f"all of {name} is {by} times what the formula gives")
        at = self._places.of_factor.get((name, _key(factor)))
        if name in ("dQ", "dK") and not _is(factor * scale, 1.0):  # where dS has that factor already
            at = self._places.of_factor.get(("dS", _key(factor * scale)), at)
        if at is not None:
            self._places.of_mistakes.append((frozenset([made]), at, None))
        return made

    def _of_other(self, name: str, match: Match) -> Mistake:
        """A result that is another one, or a product of other things."""
        product, due = match.form.product, PRODUCTS.get(name)
        if match.form.kind or product is None or due is None:
            words = f"what is returned as {name} is {match.form.words}"
            made, at = Mistake(name, "order", words, "return it under its own name"), None
        else:
            key = "transposed" if product == due.turned else "operand"
            made = Mistake(name, key, f"{name} is made of {product.formula}, not of {due.formula}")
            at = self._places.of_product.get(product)
            named = (one.at for one in self._holdings if role_of(one.name) == due.matrix and one.kind == product.matrix)
            at = at if product.matrix == due.matrix else next(named, at)
        if at is not None:
            self._places.of_mistakes.append((frozenset([made]), at, None))
        return made

    def _located(self, mistake: Mistake, together: frozenset[Mistake]) -> Located:
        """Where one of the mistakes of a result is made: of one in the scores or the mask, where these are made."""
        places = self._places
        shows = (one for one in places.of_mistakes if mistake in one[0] and one[0] <= together)
        if mistake.key in AT_USE:
            shows = (one for one in shows if one[2] is None or (one[2].kind != "P" and one[2].words != "PE"))
        _, at, form = next(shows, (None, None, None))
        scores = [at for by, at in places.of_scores if mistake.of_scores is not None and _is(by, mistake.of_scores)]
        if scores and mistake.key.startswith("scale"):
            at = scores[-1]
        elif mistake.mask:
            at = places.of_masks.get(mistake.mask, at)
        return Located(mistake, at, (), form)

    def _strange(self) -> Value | None:
        """The first variable named as an intermediate that holds none; else the first that holds nothing known."""
        # What is written into later shows only in the end what it holds.
        final = [one for one in self._unknown if self._latest[one.at.function, one.at.name] is one]
        named = [value for value in final if role_of(value.at.name) in DUE]
        others = [value for value in final if value.array.ndim >= 2]
        return next(iter([*named, *others]), None)


def _is(factor: float, known: float) -> bool:
    return abs(factor - known) <= _NEAR * abs(known)


def _key(factor: float) -> str:
    """A factor to three digits, so that those of rounded values are one."""
    return f"{factor:.3g}"
