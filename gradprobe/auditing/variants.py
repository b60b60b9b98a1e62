"""Variants: what people write in the place of a step of the formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import numpy as np

from ..model.intermediates import symbol
from .formulas import FEATURES, Form, Formulas, Mistake, Rewrite, softmax, value

# Lines that are taken for a step: a factor dropped, another sign, another axis, a transpose, another matrix.
_LINES = {
    "PE": (
        "P", "relu(P + tau / (i + 1))", "seen * (P + tau / (i + 1))", "seen * relu(P + tau)",
        "seen * relu(P + tau / (i + (i < 1)))",
    ),
    "dP": ("seen * (dO V^T)", "dO V^T"),
    "delta": (
        "rowsum(dP)", "colsum(P * dP)", "colsum(dP)", "rowsum(P * P * dP)", "rowmax(P * dP)", "rowsum(P * P)",
        "rowsum(dP * dP)", "rowsum(dO)", "rowsum(O)", "rowsum(P)",
    ),
    "dS": (
        "P * dP", "dP - delta", "P * (dP + delta)", "P * dP - delta", "P * (dP - delta^T)", "P * dP * (1 - P)",
        "P * (dP^T - delta)", "P^T * (dP - delta)", "S * (dP - delta)", "dP * (dP - delta)", "P * (P - delta)",
        "P * (S - delta)", "P * (dP - 2 * delta)",
    ),
}  # fmt: skip
_LOSSES = {"O.sum()": "0 * O + 1", "O.mean()": "0 * O + 1 / {}", "(O * O).sum() / 2": "O"}
_SCALES = {
    "scale/ignored": ("the scale that is given is not used, but 1 / sqrt(head dim)", "use it"),
    "scale/left-out": ("the scores are not scaled", "multiply Q K^T by the scale"),
    "scale/twice": ("the scores are scaled twice", "scale once"),
    "scale/inverse": ("the scores are divided by the scale", "multiply by the scale"),
    "scale/root": ("the scores are multiplied by the square root of the scale", ""),
    "scale/head-dim": ("the scores are divided by the head dim, not by its root", ""),
    "scale/width": ("the scores are scaled by the width of all heads, not of one", ""),
    "scale/length": ("the scores are scaled by the length, not by the head dim", ""),
    "exp2/log2e": ("the scores are in units of log2, and exp is taken of them", "take exp2, or leave out log2(e)"),
    "exp2/ln2": ("exp2 is taken of scores in natural units", "take exp, or multiply by log2(e)"),
}
_MASKS = {
    "left-out": ("P is made of scores without the mask", "mask the scores with -inf before the softmax"),
    "strict": ("the mask hides the diagonal too", "let a row see its own key: j <= i"),
    "inverted": ("the mask shows what it should hide (j >= i)", "show j <= i"),
    "inverted-strict": ("the mask is upside down (j > i)", "show j <= i, which is the opposite of this mask"),
    "late": ("the mask shows one key too many (j <= i + 1)", "show j <= i"),
    "zero": ("masked scores are 0 where they should be -inf, so masked keys keep a share", "fill with -inf"),
    "after": ("the mask is laid over P after the softmax, so rows do not sum to one", "mask the scores with -inf"),
    "undue": ("it masks causally although causal is false", "mask only where causal is true"),
}
_UNNORMALISED = "exp(S) is not divided by its sum, so rows do not sum to one"
_SOFTMAXES = {
    "queries": ("the softmax is over the queries of a key, not over the keys of a query", "softmax(T, -2)"),
    "unnormalised": (_UNNORMALISED, "exp(T - rowmax(T))"),
    "raw": (_UNNORMALISED, "exp(T)"),
    "all": ("the softmax is over all queries and keys together", "softmax(T, (-1, -2))"),
    "scores": ("the scores stand where P is due", "seen * logits(scale)"),
    "transposed": ("P is made of K Q^T, the transposed scores", "softmax(hide(turned(logits(scale)), seen))"),
    "columns": (
        "exp(S) is divided by its sum over the queries, not over the keys",
        "exp(T - rowmax(T)) / turned(colsum(exp(T - rowmax(T))))",
    ),
    "heads": ("the softmax is over the heads, not over the keys", "softmax(T, 1)"),
}


def variants(f: Formulas, *, asks_for_mask: bool = True) -> list[Rewrite]:
    """Every rewrite of one step. Of two that give the same numbers the first is told."""
    found = [*_scores(f), *_masks(f, asks_for_mask)]
    for key, (came, line) in _SOFTMAXES.items():
        fix = "divide by the sum over the keys" if came == _UNNORMALISED else "take it over the last axis"
        if key != "heads" or f.x.n_heads > 1:
            found.append(Rewrite("P", line, Mistake("P", f"softmax/{key}", came, fix)))
    for words, line in _LOSSES.items():
        came = f"dO is not used: the gradients are those of {words}"
        made = line.format(f.x.do.numel())
        found.append(Rewrite("dO", made, Mistake("dP", "do/other", came, "hand dO to the backward")))
    for step, line in _lines(f):
        of, due = ("O", "relu(P + tau / (i + 1))") if step == "PE" else (step, step)
        key = "tau/left-out" if line == "P" else f"{of.lower()}/operand"
        found.append(Rewrite(step, line, Mistake(of, key, f"{line} stands for {due}")))
    means = {
        f"1/{f.x.n_key} (the length) of the sum over the row": f.x.n_key,
        "it is divided by the keys that a row sees": np.maximum(f.valid.sum(-1, keepdims=True), 1),
    }
    for words, count in means.items():
        mistake = Mistake("delta", "delta/factor", f"delta is a mean: {words}")
        found.append(Rewrite("delta", f.right["delta"] / count, mistake))
    return found


def _scores(f: Formulas) -> Iterator[Rewrite]:
    """P of other scores: by its own softmax, and from a given LSE."""
    d, scale, log2e = f.x.q.shape[-1], f.x.scale, math.log2(math.e)
    factors = [d**-0.5, 1.0, scale**2, 1 / scale, scale**0.5, 1 / d, (f.x.n_heads * d) ** -0.5, f.x.n_key**-0.5]
    factors += [scale * log2e, scale / log2e]
    rows, known = list[tuple[Mistake, str]](), [scale]
    for (key, words), factor in zip(_SCALES.items(), factors, strict=True):
        if not np.isclose(factor, known).any():
            known.append(factor)
            of = "S" if key.startswith("scale") else "P"
            rows.append((Mistake(of, key, *words, of_scores=factor), f"logits({factor})"))
    if f.x.bias is not None:
        came = "the bias is left out of the scores"
        rows.append((Mistake("S", "bias/left-out", came, "add it before the softmax"), "S"))
    rows += [(form.mistakes[0], f"scale * ({words})") for words, form in other_scores(f).items()]
    for mistake, line in rows:
        for text in (f"softmax(hide({line}, seen))", f"exp(hide({line}, seen) - LSE)"):
            yield Rewrite("P", value(text, f.right), mistake)


def other_scores(f: Formulas) -> dict[str, Form]:
    """Products of the wrong rows that are taken for Q K^T."""
    found = {}
    for words in _products(f):
        mistake = Mistake("S", "scores/operand", f"{words} stands for Q K^T")
        found[words] = Form("S", "bhmn", value(words, f.right), "S", (mistake,))
    return found


def _masks(f: Formulas, asks_for_mask: bool) -> Iterator[Rewrite]:
    own = {name: Mistake("P", f"mask/{name}", *row, mask=name) for name, row in _MASKS.items()}
    s = f.scores
    if f.valid.all():
        lines = ("softmax(hide(T, i >= j))", "exp(hide(T, i >= j) - LSE)", "softmax(T) * (i >= j)")
        yield from (Rewrite("P", line, own["undue"]) for line in lines if asks_for_mask)
        return
    for name, seen in f.masks().items():
        t = np.where(seen, s, -np.inf)
        mistake = own[name]
        yield Rewrite("P", softmax(t), mistake)
        if name == "left-out":
            came = "P is exp(S - LSE) with unmasked scores and a masked LSE"
            mistake = Mistake("P", "mask/left-out", came, "mask the scores with -inf again, or P with 0", mask="lse")
        yield Rewrite("P", np.exp(t - f.lse), mistake)
    yield Rewrite("P", "softmax(seen * logits(scale))", own["zero"])
    yield Rewrite("P", "softmax(logits(scale)) * seen", own["after"])


def _lines(f: Formulas) -> Iterator[tuple[str, str]]:
    """What else is taken for a step."""
    for words in _products(f):
        yield "dP", words
    for step, lines in _LINES.items():
        is_given = f.is_lazy or step in ("delta", "dS")
        yield from ((step, line) for line in lines if is_given)
    for a, b in combinations_with_replacement((*FEATURES, "dV"), 2):
        is_delta = {a, b} == {"do", "O"} and not f.is_lazy
        if not is_delta and _are_alike(f, a, b):
            yield "delta", f"rowsum({symbol(a)} * {symbol(b)})"


def _products(f: Formulas) -> Iterator[str]:
    """Products of rows that are neither the scores nor dP."""
    for a, b in product(FEATURES, repeat=2):
        if {a, b} not in ({"do", "v"}, {"q", "k"}) and _are_alike(f, a, b):
            yield f"{symbol(a)} {symbol(b)}^T"


def _are_alike(f: Formulas, a: str, b: str) -> bool:
    return bool(f.right[symbol(a)].shape == f.right[symbol(b)].shape)
