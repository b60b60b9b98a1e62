"""Formulas: the steps of an attention backward in float64, whole, right or with rewrites of some of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..model.intermediates import PRODUCTS, SUBEXPRESSIONS, TABLE, Product, plain, steps, symbol
from ..reference import Attention, Tile

Array = NDArray[np.float64]
_CHAIN = ("S", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "LSE")
DUE = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
DUE |= {"S": "S = scale * Q K^T", "P": f"{DUE['P']}, S masked with -inf", "delta": f"{DUE['delta']} = rowsum(P * dP)"}
DUE = {name: DUE[name] for name in _CHAIN}
"""The formula of each intermediate in the softmax family, those that results are made of first."""
_RESULTS = {
    word: row.name
    for row in (*TABLE, *SUBEXPRESSIONS)
    for word in (plain(row.name), *row.called.references.split(), *plain(row.called.parameters).split())
}
# What stands behind the name of a variable in much code.
_COPIES = ("_ref", "_manual", "_torch", "_expected", "_np", "_hat", "_fp32", "_f32", "_f64")


def due_in(family: str) -> Mapping[str, str]:
    """The formula of each intermediate in a family."""
    others = {row.name: f"{row.name} = {step.formula}" for row, step in steps(family) if step != row.softmax}
    return DUE | others


def role_of(name: str) -> str | None:
    """The intermediate that a variable or a key of a result is named after; None where its name says nothing."""
    word = name.lower().strip("_")
    for ending in _COPIES:
        word = word.removesuffix(ending)
    return _RESULTS.get(plain(word.removeprefix("ref_")))


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
    make: Callable[[Mapping[str, Array]], Array]
    """Its values from those of the steps before it."""
    mistakes: tuple[Mistake, ...] = ()
    """() where it is another right way."""
    words: str = ""
    """What it makes; "" for what is due."""


@dataclass(frozen=True, eq=False)
class Form:
    """One thing that a value may be."""

    kind: str
    """The intermediate or input; "" of what is only a step on the way."""
    axes: str
    values: Array
    words: str
    mistakes: tuple[Mistake, ...] = ()
    product: Product | None = None
    """Of a product: what it multiplies."""
    rewrites: tuple[Rewrite, ...] = ()
    """With which it was made."""


INPUTS = {"q": "bhmd", "k": "bhnd", "v": "bhne", "do": "bhme"}
FEATURES = {**INPUTS, "O": "bhme"}
_AXES = {"O": "bhme", "dV": "bhne", "delta": "bhm", "dQ": "bhmd", "dK": "bhnd"}


class _Steps(dict[str, Array]):
    """The steps so far, with the mistakes that each was made with, and those of all that a formula reads."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        super().__init__(values)
        self.mistakes: dict[str, tuple[Mistake, ...]] = {}
        self._read: dict[Mistake, None] = {}

    def __getitem__(self, name: str) -> Array:
        self._read |= dict.fromkeys(self.mistakes.get(name, ()))
        return super().__getitem__(name)

    def make(self, rewrite: Rewrite) -> None:
        self._read = {}
        self[rewrite.step] = rewrite.make(self)
        self.mistakes[rewrite.step] = tuple(dict.fromkeys((*self._read, *rewrite.mistakes)))


class Formulas:
    """The forms of one problem whose query rows are as many as its keys, and each head has a key head of its own."""

    def __init__(self, x: Attention) -> None:
        self.x, self.scale = x, x.scale
        self.inputs = {name: as_numpy(getattr(x, name)) for name in INPUTS}
        whole = [Tile(batch, slice(0, x.n_heads), slice(0, x.n_query)) for batch in range(x.n_batch)]
        self.valid = np.stack([as_numpy(x.valid(tile).expand(x.n_heads, -1, -1)) for tile in whole]) > 0
        self.raw = self.inputs["q"] @ turned(self.inputs["k"])
        self.count = np.arange(1.0, x.n_query + 1)[:, None]
        self.tau = None if x.tau is None else as_numpy(x.tau)[None, :, None, None] / self.count
        self._due = {name: Rewrite(name, make) for name, make in self._formulas().items()}
        self.order = {name: number for number, name in enumerate(self._due)}

    def _formulas(self) -> dict[str, Callable[[Mapping[str, Array]], Array]]:
        """Each step from those before it."""
        return {
            "P": lambda v: np.exp(np.where(self.valid, self.logits(self.scale), -np.inf) - self.lse),
            "PE": self._elastic,
            "O": lambda v: v["PE"] @ v["v"],
            "do": lambda v: self.inputs["do"],
            "dV": lambda v: turned(v["PE"]) @ v["do"],
            "dO V^T": lambda v: v["do"] @ turned(v["v"]),
            "dP": self._dp,
            "P * dP": lambda v: v["P"] * v["dP"],
            "delta": lambda v: v["P * dP"].sum(-1),
            "dP - delta": lambda v: v["dP"] - v["delta"][..., None],
            "dS": lambda v: v["P"] * v["dP - delta"],
            "dQ": lambda v: self.scale * v["dS"] @ v["k"],
            "dK": lambda v: self.scale * turned(v["dS"]) @ v["q"],
        }  # fmt: skip

    @cached_property
    def right(self) -> Mapping[str, Array]:
        """Each step as it is due."""
        return self._steps(())

    @cached_property
    def lse(self) -> Array:
        """[B, H, M, 1]; 0 of rows that see no key."""
        most, powers = exponentials(np.where(self.valid, self.logits(self.scale), -np.inf))
        return np.asarray(most + np.log(np.maximum(powers.sum(-1, keepdims=True), 1.0)))

    def _steps(self, rewrites: tuple[Rewrite, ...]) -> _Steps:
        made, others = _Steps(self.inputs), {one.step: one for one in rewrites}
        for name, due in self._due.items():
            made.make(others.get(name, due))
        return made

    def forms(self, *rewrites: Rewrite) -> Iterator[Form]:
        """What a backward with these rewrites holds, of that what is not right; all of one with none."""
        made, words = self._steps(rewrites), {one.step: one.words for one in rewrites}
        for name, mistakes in made.mistakes.items():
            is_another = name == "do" or (self.tau is None and name in ("PE", "dO V^T"))
            if not is_another and bool(mistakes) == bool(rewrites):
                kind, said = name if name in DUE else "", words.get(name) or name
                yield Form(kind, _AXES.get(name, "bhmn"), made[name], said, mistakes, PRODUCTS.get(name), rewrites)

    def alone(self, rewrite: Rewrite) -> Form:
        """The rewritten step itself."""
        step, words = rewrite.step, rewrite.words or rewrite.step
        values = self._steps((rewrite,))[step] if step != "P" else rewrite.make({})
        return Form(
            step if step in DUE else "", _AXES.get(step, "bhmn"), values, words, rewrite.mistakes, None, (rewrite,)
        )

    def products(self, *rewrites: Rewrite) -> Iterator[Form]:
        """What its matrices make of other inputs than are due."""
        made = self._steps(rewrites)
        for name, other, transposed in itertools.product(("P", "dP", "dS"), FEATURES, (False, True)):
            product, mistakes = Product(name, other, transposed), made.mistakes[name]
            if product not in PRODUCTS.values() and bool(mistakes) == bool(rewrites):
                values = (turned(made[name]) if transposed else made[name]) @ made[other]
                axes = "bh" + ("n" if transposed else "m") + FEATURES[other][-1]
                yield Form("", axes, values, product.formula, mistakes, product)

    def ways(self, *rewrites: Rewrite) -> Iterator[Form]:
        """The forms with each delta: its own, that of its O, and the right one, which is often given."""
        yield from self.forms(*rewrites)
        if all(one.step != "delta" for one in rewrites):
            yield from self.forms(*rewrites, Rewrite("delta", lambda v: self.right["delta"]))
            if self.tau is None:
                yield from self.forms(*rewrites, Rewrite("delta", lambda v: (v["do"] * v["O"]).sum(-1)))

    def due(self) -> Iterator[Form]:
        """What a right function may hold."""
        yield from (Form(name, axes, self.inputs[name], symbol(name)) for name, axes in INPUTS.items())
        yield Form("S", "bhmn", self.raw, "Q K^T")
        yield from (*self.forms(), *self.products())
        s, v, lse = self.logits(self.scale), self.right, self.lse[..., 0]
        t = np.where(self.valid, s, -np.inf)
        highest, powers = exponentials(t)
        of_rows = {"the maximum of S": highest[..., 0], "the maximum of S without its mask": s.max(-1),
                   "the sum of exp(S - max)": powers.sum(-1), "the sum of exp(S)": np.exp(t).sum(-1)}  # fmt: skip
        yield from (Form("", "bhm", values, words) for words, values in of_rows.items())
        yield from (Form("S", "bhmn", s, "S"), Form("LSE", "bhm", lse, "LSE"))
        yield from (Form("", "bhmn", s - one, "S - max") for one in (highest, s.max(-1)[..., None]))
        steps = {"exp(S - max)": powers, "exp(S)": np.where(self.valid, np.exp(s), 0), "S - LSE": s - self.lse,
                 "S - max": np.where(self.valid, t - highest, 0), "P * delta": v["P"] * v["delta"][..., None],
                 "dP - delta": v["dO V^T"] - v["delta"][..., None]}  # fmt: skip
        if self.tau is not None:
            z = v["P"] + self.tau
            masked = {"Z, masked": z, "dP": v["dO V^T"]}
            steps |= {"Z": z, **{words: np.where(self.valid, one, 0) for words, one in masked.items()}}
        if self.x.bias is not None:
            yield Form("S", "bhmn", self.raw * self.scale, "S")
            steps["the bias"] = self.logits(0.0)
        yield from (Form("", "bhmn", values, words) for words, values in steps.items())
        yield Form("", "bhme", v["do"] * v["O"], "dO * O")

    def masks(self) -> dict[str, NDArray[np.bool_]]:
        """By name, where keys are seen in the place of where they should be."""
        i, j = np.arange(self.x.n_query)[:, None], np.arange(self.x.n_key)
        others = {"left-out": i > -1, "strict": j < i, "inverted": j >= i, "inverted-strict": j > i, "late": j <= i + 1}
        return {name: np.broadcast_to(seen & (j > -1), self.valid.shape) for name, seen in others.items()}

    def logits(self, factor: float) -> Array:
        """Scores before the mask, of another factor than the scale."""
        s = factor * self.raw
        if self.x.softcap is not None:
            s = self.x.softcap * np.tanh(s / self.x.softcap)
        if self.x.bias is None:
            return s
        bias = as_numpy(self.x.bias)
        if self.x.family == "softmax":
            return np.asarray(s + np.where(np.isfinite(bias), bias, 0))
        distance = np.arange(self.x.n_query)[:, None] - np.arange(self.x.n_key)
        inside = (distance >= 0) & (distance < bias.shape[1])
        return np.asarray(s + np.where(inside, bias[:, np.clip(distance, 0, bias.shape[1] - 1)], 0))

    def _elastic(self, v: Mapping[str, Array]) -> Array:
        """What is multiplied by V: P itself, or of the lazy family relu(P + tau / (i + 1))."""
        return v["P"] if self.tau is None else np.where(self.valid, np.maximum(v["P"] + self.tau, 0), 0)

    def _dp(self, v: Mapping[str, Array]) -> Array:
        """dO V^T, of the lazy family where relu lets it pass."""
        passes = self.valid & (v["P"] + self.tau > 0) if self.tau is not None else np.True_
        return np.where(passes, v["dO V^T"], 0)


def turned(matrix: Array) -> Array:
    return matrix.swapaxes(-1, -2)


def exponentials(t: Array, axis: Any = -1) -> tuple[Array, Array]:
    """The maximum of each row of scores, 0 of one that sees no key, and their exponentials less that, the largest 1."""
    most = t.max(axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    return most, np.exp(t - most)


def as_numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()
