"""Formulas: an attention backward in float64, each step as a line of text, right or another in its place."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..model.intermediates import PRODUCTS, SUBEXPRESSIONS, TABLE, Product, plain, steps, symbol
from ..reference import Attention, Tile, evaluate

Array = NDArray[np.float64]
_CHAIN = ("S", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "LSE")
DUE = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
DUE |= {"S": "S = scale * Q K^T", "P": f"{DUE['P']}, S masked with -inf", "delta": f"{DUE['delta']} = rowsum(P * dP)"}
DUE = {name: DUE[name] for name in _CHAIN}
"""The formula of each intermediate in the softmax family, those that results are made of first."""
INPUTS = {"q": "bhmd", "k": "bhnd", "v": "bhne", "do": "bhme"}
FEATURES = {**INPUTS, "O": "bhme"}
_AXES = {"O": "bhme", "dV": "bhne", "delta": "bhm", "dQ": "bhmd", "dK": "bhnd"}
# In the order in which they are computed. A name behind another is a product of matrices, ^T a transpose.
_STEPS = {
    "P": "exp(T - LSE)",
    "PE": "P",
    "O": "PE V",
    "dO": "dO",
    "dV": "PE^T dO",
    "dP": "dO V^T",
    "delta": "rowsum(P * dP)",
    "dS": "P * (dP - delta)",
    "dQ": "scale * dS K",
    "dK": "scale * dS^T Q",
}
_LAZY = {"PE": "seen * relu(P + tau / (i + 1))", "dP": "seen * (P + tau / (i + 1) > 0) * (dO V^T)"}
ORDER = [*_STEPS]
# What stands behind the name of a variable in much code.
_COPIES = ("_ref", "_manual", "_torch", "_expected", "_np", "_hat", "_fp32", "_f32", "_f64")


def _roles() -> dict[str, str]:
    found = dict[str, str]()
    for row in (*TABLE, *SUBEXPRESSIONS):
        words = row.called.references.split() + plain(row.called.parameters).split()
        found |= dict.fromkeys((plain(row.name), *words), row.name)
    return found


_ROLES = _roles()


def due_in(family: str) -> Mapping[str, str]:
    """The formula of each intermediate in a family."""
    found = dict(DUE)
    for row, step in steps(family):
        if step != row.softmax:
            found[row.name] = f"{row.name} = {step.formula}"
    return found


def role_of(name: str) -> str | None:
    """The intermediate that a variable or a key of a result is named after; None where its name says nothing."""
    word = name.lower().strip("_")
    for ending in _COPIES:
        word = word.removesuffix(ending)
    return _ROLES.get(plain(word.removeprefix("ref_")))


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a formula."""

    of: str
    """The intermediate whose formula it is."""
    key: str
    """For scripts: "mask/left-out"."""
    came: str
    """What was computed, in words."""
    fix: str = ""
    of_scores: float | None = None
    """Of one in the scores, the factor of Q K^T that came."""
    mask: str = ""
    """Of one in the mask, its name among those of `Formulas.masks`."""


@dataclass(frozen=True, eq=False)
class Rewrite:
    """What stands in the place of one step of the formulas."""

    step: str
    made: str | Array
    """A line of text like those of the formulas, or the values."""
    mistake: Mistake | None = None
    """None where it is another right way."""


@dataclass(frozen=True, eq=False)
class Form:
    """One thing that a value may be."""

    kind: str
    """The intermediate or input; "" of what is none."""
    axes: str
    values: Array
    words: str
    mistakes: tuple[Mistake, ...] = ()
    product: Product | None = None
    """Of a product: what it multiplies."""
    rewrites: tuple[Rewrite, ...] = ()
    """With which it was made."""


Steps = tuple[dict[str, Any], dict[str, tuple[Mistake, ...]]]
"""The values of steps, and the mistakes that each was made with: its own, and those of all that it reads."""


@lru_cache(maxsize=512)
def _code(text: str) -> CodeType:
    text = re.sub(r"(\w+)\^T", r"turned(\1)", text)
    return compile(re.sub(r"([\w)]) (?=[\w(])", r"\1 @ ", text), text, "eval")


def value(text: str, names: dict[str, Any]) -> Array:
    """What a line of text makes of what it names."""
    return np.asarray(eval(_code(text), {"__builtins__": {}}, names))


class Formulas:
    """The forms of one problem whose query rows are as many as its keys, and each head has a key head of its own."""

    def __init__(self, x: Attention) -> None:
        self.x, self.is_lazy = x, x.tau is not None
        inputs = {symbol(name): as_numpy(getattr(x, name)) for name in INPUTS}
        seen, added = list[Array](), list[Array]()
        unmasked = replace(x, scale=0.0, causal=self.is_lazy, window=None, mask=None)
        for batch in range(x.n_batch):
            tile = Tile(batch, slice(0, x.n_heads), slice(0, x.n_query))
            seen.append(as_numpy(x.valid(tile).expand(x.n_heads, -1, -1)))
            added.append(as_numpy(evaluate(unmasked, tile)["S"]))
        self.valid = np.stack(seen) > 0
        self._bias = np.where(np.isfinite(added), added, 0.0)
        self.raw = inputs["Q"] @ turned(inputs["K"])
        self.scores = self.logits(x.scale)
        self.masked = np.where(self.valid, self.scores, -np.inf)
        most = np.where(self.valid.any(-1, keepdims=True), self.masked.max(-1, keepdims=True), 0.0)
        self.lse = most + np.log(np.maximum(np.exp(self.masked - most).sum(-1, keepdims=True), 1.0))
        self._names: dict[str, Any] = {
            **inputs,
            "scale": x.scale,
            "S": x.scale * self.raw,
            "T": self.masked,
            "LSE": self.lse,
            "seen": self.valid,
            "tau": None if x.tau is None else as_numpy(x.tau)[None, :, None, None],
            "i": np.arange(x.n_query)[:, None],
            "j": np.arange(x.n_key),
            "exp": np.exp,
            "relu": lambda z: np.maximum(z, 0),
            "turned": turned,
            "logits": self.logits,
            "hide": lambda s, seen: np.where(seen, s, -np.inf),
            "softmax": softmax,
            "rowsum": lambda z: z.sum(-1, keepdims=True),
            "colsum": lambda z: turned(z.sum(-2, keepdims=True)),
            "rowmax": lambda z: z.max(-1, keepdims=True),
        }
        self.right, _ = self._steps(())
        self._names["due_delta"] = self.right["delta"]

    def _steps(self, rewrites: tuple[Rewrite, ...]) -> Steps:
        values, mistakes = dict(self._names), dict[str, tuple[Mistake, ...]]()
        others = {one.step: one for one in rewrites}
        for step, due in (_STEPS | (_LAZY if self.is_lazy else {})).items():
            rewrite = others.get(step, Rewrite(step, due))
            found = dict[Mistake, None]()
            if isinstance(rewrite.made, str):
                values[step] = value(rewrite.made, values)
                for name in _code(rewrite.made).co_names:
                    found |= dict.fromkeys(mistakes.get(name, ()))
            else:
                values[step] = rewrite.made
            if rewrite.mistake is not None:
                found[rewrite.mistake] = None
            mistakes[step] = tuple(found)
        return values, mistakes

    def forms(self, *rewrites: Rewrite) -> Iterator[Form]:
        """What a backward with these rewrites holds, of that what is not right; all of one with none."""
        (values, made), others = self._steps(rewrites), {one.step: one.made for one in rewrites}
        for name, mistakes in made.items():
            if name == "dO" or (name == "PE" and not self.is_lazy) or bool(mistakes) != bool(rewrites):
                continue
            own, text = values[name], others.get(name)
            own = own[..., 0] if name == "delta" else own
            words = text if isinstance(text, str) else name
            yield Form(name, _AXES.get(name, "bhmn"), own, words, mistakes, PRODUCTS.get(name), rewrites)

    def products(self, *rewrites: Rewrite) -> Iterator[Form]:
        """What its matrices make of other inputs than are due."""
        values, made = self._steps(rewrites)
        for matrix, other, is_transposed in itertools.product(("P", "dP", "dS"), FEATURES, (False, True)):
            product = Product(matrix, other, is_transposed)
            if product not in PRODUCTS.values() and bool(made[matrix]) == bool(rewrites):
                axes = "bh" + "mn"[is_transposed] + FEATURES[other][-1]
                yield Form("", axes, value(product.formula, values), product.formula, made[matrix], product)

    def ways(self, *rewrites: Rewrite) -> Iterator[Form]:
        """The forms with each delta: its own, that of its O, and the right one, which is often given."""
        yield from self.forms(*rewrites)
        if all(one.step != "delta" for one in rewrites):
            yield from self.forms(*rewrites, Rewrite("delta", "due_delta"))
            if not self.is_lazy:
                yield from self.forms(*rewrites, Rewrite("delta", "rowsum(dO * O)"))

    def due(self) -> Iterator[Form]:
        """What a right function may hold."""
        for name, axes in INPUTS.items():
            yield Form(name, axes, self.right[symbol(name)], symbol(name))
        for words, scores in (("Q K^T", self.raw), ("S", self.scores), ("S", self.right["S"])):
            yield Form("S", "bhmn", scores, words)
        yield Form("LSE", "bhm", self.lse[..., 0], "LSE")
        yield from self.forms()
        yield from self.products()

    def masks(self) -> dict[str, NDArray[np.bool_]]:
        """By name, where keys are seen in the place of where they should be."""
        i, j = np.arange(self.x.n_query)[:, None], np.arange(self.x.n_key)
        others = {"left-out": i + j >= 0, "strict": j < i, "inverted": j >= i, "inverted-strict": j > i}
        others["late"] = j <= i + 1
        return {name: np.broadcast_to(seen, self.valid.shape) for name, seen in others.items()}

    def logits(self, factor: float) -> Array:
        """Scores before the mask, of another factor than the scale."""
        s = factor * self.raw
        if self.x.softcap is not None:
            s = self.x.softcap * np.tanh(s / self.x.softcap)
        return s + self._bias


def turned(matrix: Array) -> Array:
    return matrix.swapaxes(-1, -2)


def softmax(t: Array, axis: Any = -1) -> Array:
    """0 of what sees no key."""
    most = t.max(axis, keepdims=True)
    powers = np.exp(t - np.where(np.isfinite(most), most, 0.0))
    return np.asarray(powers / np.maximum(powers.sum(axis, keepdims=True), 1e-300))


def as_numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()
