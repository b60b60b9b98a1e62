"""Formulas: an attention backward in float64, each step as a line of text, and what people write in a step's place."""

from __future__ import annotations

import itertools
import math
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
RESULTS = ("O", "dQ", "dK", "dV")
_INPUTS = {"q": "bhmd", "k": "bhnd", "v": "bhne", "do": "bhme"}
_FEATURES = {**_INPUTS, "O": "bhme"}
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
# What stands behind the name of a variable in much code.
_COPIES = ("_ref", "_manual", "_torch", "_expected", "_np", "_hat", "_fp32", "_f32", "_f64")

# --- What people write: a line that stands for a step, what it is in words, and what to do.

_ROW_OF_P = "softmax(hide({}, seen))", "exp(hide({}, seen) - LSE)"
_SCALES = (
    ("ignored", "(1 / d**0.5)", "the scale that is given is not used, but 1 / sqrt(head dim)", "use it"),
    ("left-out", "1", "the scores are not scaled", "multiply Q K^T by the scale"),
    ("twice", "scale**2", "the scores are scaled twice", "scale once"),
    ("inverse", "(1 / scale)", "the scores are divided by the scale", "multiply by the scale"),
    ("root", "scale**0.5", "the scores are multiplied by the square root of the scale", ""),
    ("head-dim", "(1 / d)", "the scores are divided by the head dim, not by its root", ""),
    ("width", "(heads * d)**-0.5", "the scores are scaled by the width of all heads, not of one", ""),
)
_UNITS = (
    ("log2e", "(scale * log2e)", "the scores are in units of log2, and exp is taken of them", "take exp2"),
    ("ln2", "(scale / log2e)", "exp2 is taken of scores in natural units", "take exp, or multiply by log2(e)"),
)
_MASKS = {
    "left-out": ("i + j >= 0", "P is made of scores without the mask", "mask the scores with -inf before the softmax"),
    "strict": ("j < i", "the mask hides the diagonal too", "let a row see its own key: j <= i"),
    "inverted": ("j >= i", "the mask shows what it should hide (j >= i)", "show j <= i"),
    "inverted-strict": ("j > i", "the mask is upside down (j > i)", "show j <= i, which is its opposite"),
    "late": ("j <= i + 1", "the mask shows one key too many (j <= i + 1)", "show j <= i"),
}
_UNMASKED = (
    ("zero", "softmax(seen * logits(scale))", "masked scores are 0 where they should be -inf", "fill with -inf"),
    ("after", "softmax(logits(scale)) * seen", "the mask is laid over P after the softmax, so rows do not sum to one",
     "mask the scores with -inf"),
)  # fmt: skip
_SOFTMAXES = (
    ("queries", "softmax(T, -2)", "the softmax is over the queries of a key, not over the keys of a query"),
    ("unnormalised", "exp(T - rowmax(T))", "exp(S) is not divided by its sum, so rows do not sum to one"),
    ("unnormalised", "exp(T)", "exp(S) is not divided by its sum, so rows do not sum to one"),
    ("all", "softmax(T, (-1, -2))", "the softmax is over all queries and keys together"),
    ("heads", "softmax(T, 1)", "the softmax is over the heads, not over the keys"),
    ("columns", "exp(T - rowmax(T)) / colsum(exp(T - rowmax(T)))",
     "exp(S) is divided by its sum over the queries, not over the keys"),
)  # fmt: skip
_MEANS = {"1/{m} (the length) of the sum over the row": "j[-1] + 1", "1/{d} (the head dim) of the sum": "d"}
_MEANS["it is divided by the keys that a row sees"] = "relu(rowsum(seen) - 1) + 1"
_LOSSES = {"O.sum()": "0 * O + 1", "O.mean()": "0 * O + 1 / count", "(O * O).sum() / 2": "O"}
# A factor dropped, another sign, another axis, a transpose, another matrix.
_LINES = {
    "PE": ("P", "relu(P + tau / (i + 1))", "seen * (P + tau / (i + 1))", "seen * relu(P + tau)"),
    "dP": ("seen * (dO V^T)", "dO V^T"),
    "delta": (
        "rowsum(dP)", "colsum(P * dP)", "turned(colsum(P * dP))", "colsum(dP)", "rowsum(P * P)", "rowsum(dO)",
        "rowsum(O)", "rowsum(P)",
    ),
    "dS": (
        "P * dP", "dP - delta", "P * (dP + delta)", "P * dP - delta", "P * (dP - delta^T)", "P * dP * (1 - P)",
        "P * (dP^T - delta)", "P^T * (dP - delta)", "S * (dP - delta)", "dP * (dP - delta)", "P * (P - delta)",
        "P * (S - delta)", "P * (dP - 2 * delta)",
    ),
}  # fmt: skip


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


@dataclass(frozen=True, eq=False)
class Form:
    """One thing that a value may be, times a constant."""

    kind: str
    """The intermediate or input; "" of what is none."""
    axes: str
    values: Array
    words: str
    mistake: Mistake | None = None
    product: Product | None = None
    """Of a product: what it multiplies."""
    is_exact: bool = False
    """Whether a constant makes it another thing."""


@lru_cache(maxsize=512)
def _code(text: str) -> CodeType:
    text = re.sub(r"(\w+)\^T", r"turned(\1)", text)
    return compile(re.sub(r"([\w)]) (?=[\w(])", r"\1 @ ", text), text, "eval")


def _value(text: str, names: dict[str, Any]) -> Array:
    """What a line of text makes of what it names."""
    return np.asarray(eval(_code(text), {"__builtins__": {}}, names))


class Formulas:
    """The forms of one problem whose query rows are as many as its keys, and each head has a key head of its own."""

    def __init__(self, x: Attention) -> None:
        self.x, self.is_lazy = x, x.tau is not None
        inputs = {symbol(name): _as_numpy(getattr(x, name)) for name in _INPUTS}
        seen, added = list[Array](), list[Array]()
        unmasked = replace(x, scale=0.0, causal=self.is_lazy, window=None, mask=None)
        for batch in range(x.n_batch):
            tile = Tile(batch, slice(0, x.n_heads), slice(0, x.n_query))
            seen.append(_as_numpy(x.valid(tile).expand(x.n_heads, -1, -1)))
            added.append(_as_numpy(evaluate(unmasked, tile)["S"]))
        self.seen = np.stack(seen) > 0
        self._bias = np.where(np.isfinite(added), added, 0.0)
        self._raw = inputs["Q"] @ _turned(inputs["K"])
        masked = np.where(self.seen, self.logits(x.scale), -np.inf)
        most = np.where(self.seen.any(-1, keepdims=True), masked.max(-1, keepdims=True), 0.0)
        lse = most + np.log(np.maximum(np.exp(masked - most).sum(-1, keepdims=True), 1.0))
        self._lines = _STEPS | (_LAZY if self.is_lazy else {})
        self._names: dict[str, Any] = {
            **inputs,
            "scale": x.scale,
            "S": x.scale * self._raw,
            "T": masked,
            "LSE": lse,
            "seen": self.seen,
            "tau": None if x.tau is None else _as_numpy(x.tau)[None, :, None, None],
            "i": np.arange(x.n_query)[:, None],
            "j": np.arange(x.n_key),
            "d": x.q.shape[-1],
            "heads": x.n_heads,
            "count": x.do.numel(),
            "log2e": math.log2(math.e),
            "exp": np.exp,
            "relu": lambda z: np.maximum(z, 0),
            "turned": _turned,
            "logits": self.logits,
            "hide": lambda s, seen: np.where(seen, s, -np.inf),
            "softmax": _softmax,
            "rowsum": lambda z: z.sum(-1, keepdims=True),
            "colsum": lambda z: z.sum(-2, keepdims=True),
            "rowmax": lambda z: z.max(-1, keepdims=True),
        }
        self._right, _ = self._steps("", "")
        self._names |= {**self._right, "due_delta": self._right["delta"]}

    def _steps(self, step: str, line: str, delta: str = "") -> tuple[dict[str, Any], set[str]]:
        """The values of the steps with another line for one of them, and which are other than right."""
        values, wrong = dict(self._names), set[str]()
        for name, due in self._lines.items():
            own = line if name == step else delta if delta and name == "delta" else due
            values[name] = _value(own, values)
            if name == step or wrong.intersection(_code(own).co_names):
                wrong.add(name)
        return values, wrong

    def due(self) -> Iterator[Form]:
        """What a right function may hold, and what its matrices make of other inputs than are due."""
        for name, axes in _INPUTS.items():
            yield Form(name, axes, self._right[symbol(name)], symbol(name))
        for words, scores in (("Q K^T", self._raw), ("S", self.logits(self.x.scale)), ("S", self._right["S"])):
            yield Form("S", "bhmn", scores, words)
        yield Form("LSE", "bhm", self._right["LSE"][..., 0], "LSE")
        for name in self._lines:
            if name != "dO" and (name != "PE" or self.is_lazy):
                yield self._form(name, self._right)
        for matrix, other, is_transposed in itertools.product(("P", "dP", "dS"), _FEATURES, (False, True)):
            product = Product(matrix, other, is_transposed)
            if product not in PRODUCTS.values():
                axes = "bh" + "mn"[is_transposed] + _FEATURES[other][-1]
                yield Form("", axes, _value(product.formula, self._right), product.formula, product=product)

    def _form(self, name: str, values: Mapping[str, Any], mistake: Mistake | None = None) -> Form:
        own, axes = values[name], _AXES.get(name, "bhmn")
        if name == "delta":
            own, axes = (own[..., 0], "bhm") if own.shape[-1] == 1 else (own[..., 0, :], "bhn")
        is_exact = mistake is not None and name == "delta" and mistake.key == "delta/factor"
        return Form(name, axes, own, name, mistake, PRODUCTS.get(name), is_exact)

    def mistaken(self, *, asks_for_mask: bool = True) -> Iterator[Form]:
        """What a backward holds with each mistake: the step, and the results with its own delta or the right one."""
        for factor, mistake in self._scaled():
            if mistake.of == "S":
                yield Form("S", "bhmn", self.logits(factor), "S", mistake, is_exact=True)
        for words in self._products():
            mistake = Mistake("S", "scores/operand", f"{words} stands for Q K^T")
            yield Form("S", "bhmn", _value(words, self._right), "S", mistake)
        deltas = ["", "due_delta"] if self.is_lazy else ["", "due_delta", "rowsum(dO * O)"]
        for step, line, mistake in self.rewrites(asks_for_mask=asks_for_mask):
            for delta in deltas[: 1 if step == "delta" else None]:
                values, wrong = self._steps(step, line, delta)
                for name in wrong.intersection((step, *RESULTS)) - {"dO"}:
                    yield self._form(name, values, mistake)

    def rewrites(self, *, asks_for_mask: bool) -> Iterator[tuple[str, str, Mistake]]:
        """Every line that is taken for a step. Of two that give the same numbers the first is told."""
        for factor, mistake in self._scaled():
            yield from (("P", line.format(f"logits({factor})"), mistake) for line in _ROW_OF_P)
        if self.x.bias is not None:
            mistake = Mistake("S", "bias/left-out", "the bias is left out of the scores", "add it before the softmax")
            yield from (("P", line.format("S"), mistake) for line in _ROW_OF_P)
        for words in self._products():
            mistake = Mistake("S", "scores/operand", f"{words} stands for Q K^T")
            yield from (("P", line.format(f"scale * ({words})"), mistake) for line in _ROW_OF_P)
            yield "dP", words, Mistake("dP", "dp/operand", f"{words} stands for dP")
        yield from self._masked(asks_for_mask=asks_for_mask)
        for key, line, words in _SOFTMAXES:
            if key != "heads" or self.x.n_heads > 1:
                fix = "divide by the sum over the keys" if key == "unnormalised" else "take it over the last axis"
                yield "P", line, Mistake("P", f"softmax/{key}", words, fix)
        for words, line in _LOSSES.items():
            came = f"dO is not used: the gradients are those of {words}"
            yield "dO", line, Mistake("dP", "do/other", came, "hand dO to the backward")
        for words, count in _MEANS.items():
            came = f"delta is a mean: {words.format(m=self.x.n_key, d=self.x.q.shape[-1])}"
            yield "delta", f"due_delta / ({count})", Mistake("delta", "delta/factor", came)
        for step, line in self._others():
            of, due = ("O", "relu(P + tau / (i + 1))") if step == "PE" else (step, step)
            key = "tau/left-out" if line == "P" else f"{of.lower()}/operand"
            yield step, line, Mistake(of, key, f"{line} stands for {due}")

    def _scaled(self) -> Iterator[tuple[float, Mistake]]:
        """Other factors of Q K^T, each once."""
        known = [self.x.scale]
        for kind, rows in (("scale", _SCALES), ("exp2", _UNITS)):
            for key, line, came, fix in rows:
                factor = float(_value(line, self._names))
                if not np.isclose(factor, known).any():
                    known.append(factor)
                    yield factor, Mistake("S" if kind == "scale" else "P", f"{kind}/{key}", came, fix)

    def _masked(self, *, asks_for_mask: bool) -> Iterator[tuple[str, str, Mistake]]:
        if self.seen.all():
            words = "it masks causally although causal is false"
            undue = Mistake("P", "mask/undue", words, "mask only where causal is true")
            for line in ("softmax(hide(T, i >= j))", "exp(hide(T, i >= j) - LSE)", "softmax(T) * (i >= j)"):
                if asks_for_mask:
                    yield "P", line, undue
            return
        for name, mistake in self.masks().items():
            hidden = f"hide(logits(scale), {_MASKS[name][0]})"
            yield "P", f"softmax({hidden})", mistake
            yield "P", f"exp({hidden} - LSE)", mistake
        for key, line, came, fix in _UNMASKED:
            yield "P", line, Mistake("P", f"mask/{key}", came, fix)

    def masks(self) -> dict[str, Mistake]:
        """By name, what is wrong with another mask than is due."""
        return {name: Mistake("P", f"mask/{name}", came, fix) for name, (_, came, fix) in _MASKS.items()}

    def mask_of(self, hidden: NDArray[np.bool_]) -> Mistake | None:
        """Whose mask hides so, as far as a value has rows and keys; None of the one that is due, and of others."""
        for name, mistake in self.masks().items():
            seen = _value(_MASKS[name][0], self._names).astype(bool)
            if hidden.shape[-2:] == seen.shape and (hidden == ~seen).all():
                return None if (seen == self.seen[0, 0]).all() else mistake
        return None

    def _others(self) -> Iterator[tuple[str, str]]:
        """What else is taken for a step."""
        for step, lines in _LINES.items():
            if self.is_lazy or step in ("delta", "dS"):
                yield from ((step, line) for line in lines)
        for a, b in itertools.combinations_with_replacement((*_FEATURES, "dV"), 2):
            is_delta = {a, b} == {"do", "O"} and not self.is_lazy
            if not is_delta and self._are_alike(a, b):
                yield "delta", f"rowsum({symbol(a)} * {symbol(b)})"

    def _products(self) -> Iterator[str]:
        """Products of rows that are neither the scores nor dP."""
        for a, b in itertools.product(_FEATURES, repeat=2):
            if {a, b} not in ({"do", "v"}, {"q", "k"}) and self._are_alike(a, b):
                yield f"{symbol(a)} {symbol(b)}^T"

    def _are_alike(self, a: str, b: str) -> bool:
        return bool(self._right[symbol(a)].shape == self._right[symbol(b)].shape)

    def logits(self, factor: float) -> Array:
        """Scores before the mask, of another factor than the scale."""
        s = factor * self._raw
        if self.x.softcap is not None:
            s = self.x.softcap * np.tanh(s / self.x.softcap)
        return s + self._bias


def _turned(matrix: Array) -> Array:
    return matrix.swapaxes(-1, -2)


def _softmax(t: Array, axis: Any = -1) -> Array:
    """0 of what sees no key."""
    most = t.max(axis, keepdims=True)
    powers = np.exp(t - np.where(np.isfinite(most), most, 0.0))
    return np.asarray(powers / np.maximum(powers.sum(axis, keepdims=True), 1e-300))


def _as_numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()
