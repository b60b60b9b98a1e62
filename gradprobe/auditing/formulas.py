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

from ..faults.row_text import filled, rows_of
from ..model.intermediates import PRODUCTS, Product, lookup, plain, steps, symbol
from ..reference import Attention, Tile, evaluate
from ..targets.naming import canonical_name

Array = NDArray[np.float64]
_CHAIN = ("S", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "LSE")
DUE = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
DUE |= {"S": "S = scale * Q K^T", "P": f"{DUE['P']}, S masked with -inf", "delta": f"{DUE['delta']} = rowsum(P * dP)"}
DUE = {name: DUE[name] for name in _CHAIN}
"""The formula of each intermediate in the softmax family, those that results are made of first."""
RESULTS = {"O": "do", "dQ": "q", "dK": "k", "dV": "v"}
"""What is judged, by the input that has its shape. What else is made may be of its author's convention."""
_INPUTS = ("q", "k", "v", "do")
_AXES = {"q": "bhmd", "k": "bhnd", "v": "bhne", "do": "bhme", "O": "bhme", "dV": "bhne", "dQ": "bhmd", "dK": "bhnd"}
_AXES |= {"LSE": "bhm", "delta": "bhm"}
# In the order in which they are computed. A name behind another is a product of matrices, ^T a transpose.
_STEPS = {
    "S": "logits(scale)",
    "T": "hide(S, seen)",
    "P": "softmax(T)",
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
# What people write in the place of a step, by the intermediate that is mistaken; of two that give the same numbers the
# first is told. S is another factor of Q K^T, T another mask; then another softmax, loss, mean, factor, sign or matrix.
_MISTAKES = """
if S
each key factor said = left-out 1 not~scaled, twice scale**2 scaled~twice, inverse 1/scale divided~by~the~scale
scale/{key} | the scores are {said}
  S = logits({factor})
each key factor said = ignored d**-0.5 1/sqrt(head~dim), head-dim 1/d 1/head~dim
scale/{key} | the scores are scaled by {said}, whatever scale is given
  S = logits({factor})
if P
exp2/log2e | the scores are in units of log2, and exp is taken of them
  S = logits(scale * log2e)
exp2/ln2 | exp2 is taken of scores in natural units
  S = logits(scale / log2e)
fix mask the scores with -inf
mask/left-out | P is made of scores without the mask
  T = hide(S, i + j >= 0)
fix show j <= i
each key mask said = strict j<i hides~the~diagonal~too, inverted j>=i shows~what~it~should~hide
mask/{key} | the mask {said} ({mask})
  T = hide(S, {mask})
each key mask said = inverted-strict j>i is~upside~down, late j<=i+1 shows~one~key~too~many
mask/{key} | the mask {said} ({mask})
  T = hide(S, {mask})
fix mask only where causal is true
mask/undue | it masks causally although causal is false
  T = hide(S, j <= i)
fix mask T with -inf
mask/zero | masked scores are 0
  P = softmax(seen * logits(scale))
mask/after | the mask is laid over P after the softmax
  P = softmax(logits(scale)) * seen
fix take it over the keys
each key axis said = queries -2 the~queries~of~a~key, all (-1,-2) all~queries~and~keys, heads 1 the~heads
softmax/{key} | the softmax is over {said}
  P = softmax(T, {axis})
fix
each powers = exp(T - rowmax(T)), exp(T)
softmax/unnormalised | exp(S) is not divided by its sum
  P = {powers}
if dP
fix hand dO to the backward
each loss line = O.sum() 0*O+1, O.mean() 0*O+1/count
do/other | dO is not used: the gradients are those of {loss}
  dO = {line}
if delta
delta/factor | delta is a mean: 1/{m} (the length) of the sum over the row
  delta = due_delta / (j[-1] + 1)
delta/factor | delta is a mean: 1/{d} (the head dim) of the sum
  delta = due_delta / d
delta/factor | delta is a mean: it is divided by the keys that a row sees
  delta = due_delta / (relu(rowsum(seen) - 1) + 1)
if S
each line = Q V^T, K V^T, K Q^T, Q Q^T, K K^T
s/operand | {line} stands for Q K^T
  S = scale * {line}
if dP
each line = dO K^T, dO Q^T, V dO^T, O V^T, dO O^T, seen * (dO V^T), dO V^T
dp/operand | {line} stands for dP
  dP = {line}
if O
tau/left-out | P stands for relu(P + tau / (i + 1))
  PE = P
each line = relu(P + tau / (i + 1)), seen * (P + tau / (i + 1)), seen * relu(P + tau)
o/operand | {line} stands for relu(P + tau / (i + 1))
  PE = {line}
if delta
each line = rowsum(dP), colsum(P * dP), turned(colsum(P * dP)), colsum(dP), rowsum(dO), rowsum(O), rowsum(P)
delta/operand | {line} stands for delta
  delta = {line}
each a b = P P, dO O, dO V, dO dV, O O, dO dO, Q K, O dV, dO Q, dO K, V O
delta/operand | rowsum({a} * {b}) stands for delta
  delta = rowsum({a} * {b})
if dS
each line = P * dP, dP - delta, P * (dP + delta), P * dP - delta, P * (dP - delta^T), P * dP * (1 - P)
ds/operand | {line} stands for dS
  dS = {line}
each line = P * (dP^T - delta), P^T * (dP - delta), S * (dP - delta), dP * (dP - delta), P * (P - delta)
ds/operand | {line} stands for dS
  dS = {line}
each line = P * (S - delta), P * (dP - 2 * delta)
ds/operand | {line} stands for dS
  dS = {line}
if P
p/operand | seen * S stands for P
  P = seen * S
"""


def due_in(family: str) -> Mapping[str, str]:
    """The formula of each intermediate in a family."""
    others = {row.name: f"{row.name} = {step.formula}" for row, step in steps(family) if step != row.softmax}
    return DUE | others


def role_of(name: str) -> str | None:
    """The intermediate that a variable or a key of a result is named after; None where its name says nothing."""
    row = lookup(canonical_name(name) or plain(name))
    return row.name if row is not None else None


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
        added = list[Array]()
        for batch in range(x.n_batch):
            tile = Tile(batch, slice(0, x.n_heads), slice(0, x.n_query))
            added.append(_as_numpy(evaluate(replace(x, scale=0.0), tile)["S"]))
        seen = np.isfinite(added)
        self._bias = np.where(seen, added, 0.0)
        self._raw = inputs["Q"] @ _turned(inputs["K"])
        powers = np.where(seen, np.exp(self.logits(x.scale)), 0.0)
        self._lines = _STEPS | (_LAZY if self.is_lazy else {})
        self._names: dict[str, Any] = {
            **inputs,
            "scale": x.scale,
            "LSE": np.log(powers.sum(-1, keepdims=True)),
            "seen": seen,
            "tau": None if x.tau is None else _as_numpy(x.tau)[None, :, None, None],
            "i": np.arange(x.n_query)[:, None],
            "j": np.arange(x.n_key),
            "d": x.q.shape[-1],
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
        self._names |= self._steps("", {})[0]
        self._names["due_delta"] = self._names["delta"]

    def _steps(self, step: str, others: Mapping[str, str]) -> tuple[dict[str, Any], set[str]]:
        """The values of the steps with other lines for some, and which are other than right if one of these is."""
        values, wrong = dict(self._names), set[str]()
        for name, due in self._lines.items():
            line = others.get(name, due)
            values[name] = _value(line, values)
            if name == step or wrong.intersection(_code(line).co_names):
                wrong.add(name)
        return values, wrong

    def due(self) -> Iterator[Form]:
        """What a right function may hold, and what its matrices make of other inputs than are due."""
        yield Form("S", "bhmn", self._raw)
        for name in (*_INPUTS, "LSE", *self._lines):
            if name not in ("T", "dO") and (name != "PE" or self.is_lazy):
                yield _form(name, self._names[symbol(name)])
        for matrix, other, is_transposed in itertools.product(("P", "dP", "dS"), (*_INPUTS, "O"), (False, True)):
            product = Product(matrix, other, is_transposed)
            if product not in PRODUCTS.values():
                axes = "bh" + "mn"[is_transposed] + _AXES[other][-1]
                yield Form("", axes, _value(product.formula, self._names), product=product)

    def mistaken(self) -> Iterator[Form]:
        """What a backward holds with each mistake: the step, and the results; P may be of a given LSE, delta right."""
        deltas = ["rowsum(P * dP)", "due_delta"] + ([] if self.is_lazy else ["rowsum(dO * O)"])
        for step, line, mistake in self._rewrites():
            powers = ("softmax(T)", "exp(T - LSE)") if step in ("S", "T") else ("softmax(T)",)
            for p, delta in itertools.product(powers, deltas[: 1 if step == "delta" else None]):
                values, wrong = self._steps(step, {"P": p, "delta": delta, step: line})
                for name in wrong.intersection((step, "P" if step == "T" else step, *RESULTS)) - {"T", "dO"}:
                    yield _form(name, values[name], mistake)

    def _rewrites(self) -> Iterator[tuple[str, str, Mistake]]:
        """Every line that is taken for a step."""
        sizes = {"m": self.x.n_key, "d": self.x.q.shape[-1]}
        for row in rows_of(_MISTAKES):
            # Some products have no shape where those of q and v differ.
            if row.fault.endswith("operand") and self.x.q.shape != self.x.v.shape:
                continue
            for words in row.each:
                step, line = filled(row.formulas[0], words).split(" = ", 1)
                if step != "PE" or self.is_lazy:
                    key, came = filled(row.fault, words), filled(row.summary, {**words, **sizes})
                    yield step, line, Mistake(row.needs, key, came, row.fix)

    def mask_of(self, hidden: NDArray[np.bool_]) -> Mistake | None:
        """Whose mask hides so, as far as a value has rows and keys; None of the one that is due, and of others."""
        if hidden.shape[-2:] == self._raw.shape[-2:] and (hidden != ~self._names["seen"][0, 0]).any():
            for step, line, mistake in self._rewrites():
                shown = _value(line, {**self._names, "S": np.zeros(hidden.shape[-2:])}) if step == "T" else None
                if shown is not None and (hidden == ~np.isfinite(shown)).all():
                    return mistake
        return None

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


def _form(name: str, values: Array, mistake: Mistake | None = None) -> Form:
    axes, key = _AXES.get(name, "bhmn"), mistake.key if mistake is not None else ""
    if axes == "bhm":  # a sum over rows, or by mistake over columns, keeps its axis
        values, axes = (values[..., 0], axes) if values.shape[-1] == 1 else (values[..., 0, :], "bhn")
    is_exact = (name == "S" and key.startswith("scale/")) or (name == "delta" and key == "delta/factor")
    return Form(name, axes, values, mistake, PRODUCTS.get(name), is_exact)
