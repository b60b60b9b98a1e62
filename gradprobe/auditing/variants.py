"""Variants: what people write in the place of a step of the formulas, a row each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.intermediates import symbol
from .formulas import FEATURES, Array, Form, Formulas, Mistake, Rewrite, exponentials, turned

Steps = Mapping[str, Array]
Make = Callable[[Steps], Array]


class _Scores(NamedTuple):
    mistake: Mistake | None
    values: Array


class _Mask(NamedTuple):
    mistake: Mistake | None
    seen: NDArray[np.bool_]
    hidden: float = -np.inf
    """What hidden scores are."""
    is_late: bool = False
    """Whether it is laid over P."""


def variants(f: Formulas, *, asks_for_mask: bool = True) -> list[Rewrite]:
    """Every rewrite of one step. Of two that give the same numbers the first is told."""
    rows = [*_probabilities(f, asks_for_mask), *_losses(), *_dps(f), *_deltas(f), *_dss(f)]
    return [*rows, *(_elastic(f, f.tau) if f.tau is not None else ())]


# --- P: of scores, a mask and a softmax


def _probabilities(f: Formulas, asks_for_mask: bool) -> Iterator[Rewrite]:
    """P with a mistake in its scores, its mask or its softmax; from a given LSE where that is possible."""
    right, due = _Scores(None, f.logits(f.scale)), _Mask(None, f.valid)
    for scores in (*_scores(f), *(_Scores(form.mistakes[0], f.scale * form.values) for form in other_scores(f))):
        yield from (_p(f, scores, due, kind) for kind in ("", "given"))
    for mask in _masks(f, asks_for_mask):
        yield _p(f, right, mask)
        if np.isinf(mask.hidden) and not mask.is_late:
            yield _p(f, right, mask, "given")
    yield from (_p(f, right, due, kind) for kind in _KINDS if kind != "heads" or f.x.n_heads > 1)


def other_scores(f: Formulas) -> Iterator[Form]:
    """Products of the wrong rows that are taken for Q K^T."""
    for words, values in _products(f):
        yield Form("S", "bhmn", values(f.right), "S", (Mistake("S", "scores/operand", f"{words} stands for Q K^T"),))


def _p(f: Formulas, scores: _Scores, mask: _Mask, kind: str = "") -> Rewrite:
    mistake = scores.mistake or mask.mistake
    if kind in _KINDS:
        mistake = Mistake("P", f"softmax/{kind}", *_KINDS[kind])
    elif kind == "given" and mistake is not None and mistake.key == "mask/left-out":
        words = "P is exp(S - LSE) with unmasked scores and a masked LSE"
        mistake = Mistake("P", "mask/left-out", words, "mask the scores with -inf again, or P with 0", mask="lse")
    with np.errstate(all="ignore"):
        s = turned(scores.values) if kind == "transposed" else scores.values
        t = s if mask.is_late else np.where(mask.seen, s, mask.hidden)
        made = np.exp(t - f.lse) if kind == "given" else _softmax(kind, t)
    values = np.where(mask.seen, made, 0) if mask.is_late else np.asarray(made)
    return Rewrite("P", lambda v: values, (mistake,) if mistake else ())


# Of each kind of softmax: what is wrong with it, and how it is mended.
_KINDS = {
    "queries": ("the softmax is over the queries of a key, not over the keys of a query", "take it over the last axis"),
    "heads": ("the softmax is over the heads, not over the keys", "take it over the last axis"),
    "unnormalised": ("exp(S) is not divided by its sum, so rows do not sum to one", "divide by the sum over the keys"),
    "raw": ("exp(S) is not divided by its sum, so rows do not sum to one", "divide by the sum over the keys"),
    "all": ("the softmax is over all queries and keys together", "take it over the last axis"),
    "scores": ("the scores stand where P is due", "take the softmax over the keys"),
    "transposed": ("P is made of K Q^T, the transposed scores", "make it of Q K^T"),
    "columns": ("exp(S) is divided by its sum over the queries, not over the keys", "sum over the last axis"),
}
_SOFTMAX_AXES: dict[str, int | tuple[int, int]] = {"queries": -2, "heads": 1, "all": (-1, -2)}


def _softmax(kind: str, t: Array) -> Array:
    if kind == "scores":
        return np.where(np.isfinite(t), t, 0)
    axis = _SOFTMAX_AXES.get(kind, -1)
    powers = np.exp(t) if kind == "raw" else exponentials(t, axis)[1]
    if kind in ("raw", "unnormalised"):
        return np.asarray(powers)
    return np.asarray(powers / powers.sum(-2 if kind == "columns" else axis, keepdims=True))


def _scores(f: Formulas) -> Iterator[_Scores]:
    d, width, log2e = f.x.q.shape[-1], f.x.n_heads * f.x.q.shape[-1], math.log2(math.e)
    ways = {
        "scale/ignored": (d**-0.5, "the scale that is given is not used, but 1 / sqrt(head dim)", "use it"),
        "scale/left-out": (1.0, "the scores are not scaled", "multiply Q K^T by the scale"),
        "scale/twice": (f.scale**2, "the scores are scaled twice", "scale once"),
        "scale/inverse": (1 / f.scale, "the scores are divided by the scale", "multiply by the scale"),
        "scale/root": (f.scale**0.5, "the scores are multiplied by the square root of the scale", ""),
        "scale/head-dim": (1 / d, "the scores are divided by the head dim, not by its root", ""),
        "scale/width": (width**-0.5, "the scores are scaled by the width of all heads, not of one", ""),
        "scale/length": (f.x.n_key**-0.5, "the scores are scaled by the length, not by the head dim", ""),
        "exp2/log2e": (f.scale * log2e, "the scores are in units of log2, and exp is taken of them",
                       "take exp2, or leave out log2(e)"),
        "exp2/ln2": (f.scale / log2e, "exp2 is taken of scores in natural units", "take exp, or multiply by log2(e)"),
    }  # fmt: skip
    before = [f.scale]
    for key, (factor, words, fix) in ways.items():
        if all(abs(factor - other) > 1e-6 * abs(factor) for other in before):
            before.append(factor)
            of = "S" if key.startswith("scale") else "P"
            yield _Scores(Mistake(of, key, words, fix, of_scores=factor), f.logits(factor))
    if f.x.bias is not None:
        words = "the bias is left out of the scores"
        yield _Scores(Mistake("S", "bias/left-out", words, "add it before the softmax"), f.scale * f.raw)


_MASKS = {
    "left-out": ("P is made of scores without the mask", "mask the scores with -inf before the softmax"),
    "strict": ("the mask hides the diagonal too", "let a row see its own key: j <= i"),
    "inverted": ("the mask shows what it should hide (j >= i)", "show j <= i"),
    "inverted-strict": ("the mask is upside down (j > i)", "show j <= i, which is the opposite of this mask"),
    "late": ("the mask shows one key too many (j <= i + 1)", "show j <= i"),
    "zero": ("masked scores are 0 where they should be -inf, so masked keys keep a share", "fill with -inf"),
    "after": ("the mask is applied to P after the softmax, so rows do not sum to one",
              "mask the scores with -inf before the softmax"),
    "undue": ("it masks causally although causal is false", "mask only where causal is true"),
}  # fmt: skip


def _masks(f: Formulas, asks_for_mask: bool) -> Iterator[_Mask]:
    mistakes = {name: Mistake("P", f"mask/{name}", *row, mask=name) for name, row in _MASKS.items()}
    if not f.valid.all():
        for name, seen in f.masks().items():
            yield _Mask(mistakes[name], seen)
        yield _Mask(mistakes["zero"], f.valid, hidden=0.0)
        yield _Mask(mistakes["after"], f.valid, is_late=True)
    elif asks_for_mask:
        seen = np.broadcast_to(np.tri(f.x.n_query, f.x.n_key, dtype=bool), f.valid.shape)
        yield _Mask(mistakes["undue"], seen)
        yield _Mask(mistakes["undue"], seen, is_late=True)


# --- what follows P


def _elastic(f: Formulas, tau: Array) -> Iterator[Rewrite]:
    """What stands for relu(P + tau / (i + 1)), and dP where the relu is passed over."""
    by_row, i = tau * f.count, np.maximum(f.count - 1, 1)
    relu: Callable[[Array], Array] = lambda z: np.where(f.valid, np.maximum(z, 0), 0)  # noqa: E731
    ways: dict[str, tuple[str, Make]] = {
        "left-out": ("P stands for relu(P + tau / (i + 1))", lambda v: v["P"]),
        "open": ("PE is not masked again after tau was added", lambda v: np.maximum(v["P"] + tau, 0)),
        "no-relu": ("the relu is left out of PE", lambda v: np.where(f.valid, v["P"] + tau, 0)),
        "by-row": ("tau is not divided by i + 1", lambda v: relu(v["P"] + by_row)),
        "from-0": ("tau is divided by i, not by i + 1", lambda v: relu(v["P"] + by_row / i)),
    }
    for key, (words, make) in ways.items():
        yield Rewrite("PE", make, (Mistake("O", f"tau/{key}", words),))
    passed = Mistake("dP", "dp/relu", "dP does not stop where the relu does")
    yield Rewrite("dP", lambda v: np.where(f.valid, v["dO V^T"], 0), (passed,))
    yield Rewrite("dP", lambda v: v["dO V^T"], (passed,))


def _losses() -> Iterator[Rewrite]:
    """The gradient of another loss than sum(O * dO)."""
    ways: dict[str, Make] = {
        "the gradients are those of O.sum()": lambda v: np.ones_like(v["O"]),
        "O stands in its place": lambda v: v["O"],
        "the gradients are those of O.mean()": lambda v: np.full_like(v["O"], 1 / v["O"].size),
    }
    for words, make in ways.items():
        yield Rewrite("do", make, (Mistake("dP", "do/other", f"dO is not used: {words}", "hand dO to the backward"),))


def _products(f: Formulas) -> Iterator[tuple[str, Make]]:
    """Products of rows that are neither the scores nor dP, in words."""
    for a, b in itertools.product(FEATURES, repeat=2):
        if {a, b} not in ({"do", "v"}, {"q", "k"}) and f.right[a].shape == f.right[b].shape:
            yield f"{symbol(a)} {symbol(b)}^T", partial(lambda a, b, v: v[a] @ turned(v[b]), a, b)


def _dps(f: Formulas) -> Iterator[Rewrite]:
    for words, make in _products(f):
        yield Rewrite("dP", make, (Mistake("dP", "dp/operand", f"{words} stands for dP"),), words)


def _deltas(f: Formulas) -> Iterator[Rewrite]:
    """One number a row that is taken for delta."""
    others: dict[str, Make] = {
        "rowsum(dP)": lambda v: v["dP"].sum(-1), "colsum(P * dP)": lambda v: v["P * dP"].sum(-2),
        "colsum(dP)": lambda v: v["dP"].sum(-2), "rowsum(P^2 * dP)": lambda v: (v["P"] * v["P * dP"]).sum(-1),
        "max(P * dP)": lambda v: v["P * dP"].max(-1), "rowsum(P * P)": lambda v: (v["P"] ** 2).sum(-1),
        "rowsum(dP * dP)": lambda v: (v["dP"] ** 2).sum(-1), "rowsum(dO)": lambda v: v["do"].sum(-1),
        "rowsum(O)": lambda v: v["O"].sum(-1), "rowsum(P)": lambda v: v["P"].sum(-1),
        "rowsum(dP) / the length": lambda v: v["dP"].mean(-1),
    }  # fmt: skip
    for a, b in itertools.combinations_with_replacement((*FEATURES, "dV"), 2):
        is_delta = {a, b} == {"do", "O"} and f.tau is None
        if not is_delta and f.right[a].shape == f.right[b].shape:
            words = f"rowsum({symbol(a)} * {symbol(b)})"
            others[words] = partial(lambda a, b, v: (v[a] * v[b]).sum(-1), a, b)
    for words, make in others.items():
        yield Rewrite("delta", make, (Mistake("delta", "delta/operand", f"{words} stands for delta"),), words)
    means = {
        f"delta is a mean, 1/{f.x.n_key} (the length) of the sum over the row": f.x.n_key,
        "delta is a mean: it is divided by the keys that a row sees": np.maximum(f.valid.sum(-1), 1),
    }
    for words, count in means.items():
        make = partial(lambda count, v: v["P * dP"].sum(-1) / count, count)
        yield Rewrite("delta", make, (Mistake("delta", "delta/factor", words),))


def _dss(f: Formulas) -> Iterator[Rewrite]:
    s = f.raw * f.scale
    column: Make = lambda v: v["delta"][..., None]  # noqa: E731
    ways: dict[str, tuple[str, Make]] = {
        "delta-left-out": ("delta is left out of dS", lambda v: v["P * dP"]),
        "p-left-out": ("P is left out of dS", lambda v: v["dP - delta"]),
        "sign-of-delta": ("delta is added in dS", lambda v: v["P"] * (v["dP"] + column(v))),
        "outside": ("delta is not multiplied by P in dS", lambda v: v["P * dP"] - column(v)),
        "by-columns": ("delta is subtracted along the keys, not along the rows",
                       lambda v: v["P"] * (v["dP"] - v["delta"][..., None, :])),
        "elementwise": ("dS has the derivative of a sigmoid, without the sum over the row",
                        lambda v: v["P * dP"] * (1 - v["P"])),
        "dp-transposed": ("dP is transposed in dS", lambda v: v["P"] * (turned(v["dP"]) - column(v))),
        "p-transposed": ("P is transposed in dS", lambda v: turned(v["P"]) * v["dP - delta"]),
        "scores": ("dS is made of S, not of P", lambda v: s * v["dP - delta"]),
        "dp-for-p": ("dP stands for P in dS", lambda v: v["dP"] * v["dP - delta"]),
        "p-for-dp": ("P stands for dP in dS", lambda v: v["P"] * (v["P"] - column(v))),
        "s-for-dp": ("S stands for dP in dS", lambda v: v["P"] * (s - column(v))),
        "o-twice": ("delta is subtracted twice", lambda v: v["P"] * (v["dP"] - 2 * column(v))),
    }  # fmt: skip
    for key, (words, make) in ways.items():
        yield Rewrite("dS", make, (Mistake("dS", f"ds/{key}", words),))
