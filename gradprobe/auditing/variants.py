"""Variants: what people write in the places of a right backward's formulas, and what follows from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.intermediates import PRODUCTS, Product, symbol
from .forms import Array, Form, Mistake, multiplied
from .formulas import Formulas, exponentials


class Variants(Formulas):
    """The forms of one problem with a mistake in them."""

    @property
    def masks(self) -> Mapping[str, NDArray[np.bool_]]:
        """By name, where keys are seen in the place of where they should be."""
        i, j = np.arange(self.x.n_query)[:, None], np.arange(self.x.n_key)
        others = {"left-out": i > -1, "strict": j < i, "inverted": j >= i, "inverted-strict": j > i, "late": j <= i + 1}
        return {name: np.broadcast_to(seen & (j > -1), self.valid.shape) for name, seen in others.items()}

    def wrong_p(self) -> Iterator[Form]:
        """P with one or two mistakes in its scores, its mask, or its softmax."""
        factors, masks, kinds = list(self._factors()), list(self._masks()), list(_KINDS.items())
        for (of_factor, factor), (of_mask, mask), (kind, words) in itertools.product(factors, masks, kinds):
            of_kind = Mistake("P", f"softmax/{kind}", words[0], words[1]) if kind else None
            mistakes = tuple(one for one in (of_factor, of_mask, of_kind) if one is not None)
            if 0 < len(mistakes) < 3 and (kind != "heads" or self.x.n_heads > 1):
                with np.errstate(all="ignore"):
                    way = of_mask.key if of_mask else ""
                    way = "mask/after" if of_mask and of_mask.mask == "after" else way
                    values = _softmaxed(kind, self.logits(factor), way, mask, self.valid)
                if values is not None:
                    yield Form("P", "bhmn", values, "P", mistakes)
        if self.x.bias is not None:
            without = np.where(self.valid, self.scale * self.raw, -np.inf)
            _, powers = exponentials(without)
            mistake = Mistake("S", "bias/left-out", "the bias is left out of the scores", "add it before the softmax")
            yield Form("P", "bhmn", powers / np.maximum(powers.sum(-1, keepdims=True), 1.0), "P", (mistake,))
        for of_factor, factor in factors[1:]:  # of an LSE that is given, and right
            assert of_factor is not None
            yield Form("P", "bhmn", np.where(self.valid, np.exp(self.logits(factor) - self._lse), 0), "P", (of_factor,))

    def _factors(self) -> Iterator[tuple[Mistake | None, float]]:
        yield None, self.scale
        d, width, log2e = self.x.q.shape[-1], self.x.n_heads * self.x.q.shape[-1], math.log2(math.e)
        ways = {
            "scale/ignored": (d**-0.5, "the scale that is given is not used, but 1 / sqrt(head dim)", "use it"),
            "scale/left-out": (1.0, "the scores are not scaled", "multiply Q K^T by the scale"),
            "scale/twice": (self.scale**2, "the scores are scaled twice", "scale once"),
            "scale/inverse": (1 / self.scale, "the scores are divided by the scale", "multiply by the scale"),
            "scale/root": (self.scale**0.5, "the scores are multiplied by the square root of the scale", ""),
            "scale/head-dim": (1 / d, "the scores are divided by the head dim, not by its root", ""),
            "scale/width": (width**-0.5, "the scores are scaled by the width of all heads, not of one", ""),
            "scale/length": (self.x.n_key**-0.5, "the scores are scaled by the length, not by the head dim", ""),
            "exp2/log2e": (self.scale * log2e, "the scores are in units of log2, and exp is taken of them",
                           "take exp2, or leave out log2(e)"),
            "exp2/ln2": (self.scale / log2e, "exp2 is taken of scores in natural units",
                         "take exp, or multiply by log2(e)"),
        }  # fmt: skip
        seen = [self.scale]
        for key, (factor, words, fix) in ways.items():
            if all(abs(factor - other) > 1e-6 * abs(factor) for other in seen):
                seen.append(factor)
                yield Mistake("S" if key.startswith("scale") else "P", key, words, fix, of_scores=factor), factor

    def _masks(self) -> Iterator[tuple[Mistake | None, NDArray[np.bool_]]]:
        yield None, self.valid
        if self.valid.all() and not self._asks_for_mask:
            return
        if self.valid.all():
            i, j = np.arange(self.x.n_query)[:, None], np.arange(self.x.n_key)
            undue, seen = "it masks causally although causal is false", np.broadcast_to(j <= i, self.valid.shape)
            yield Mistake("P", "mask/undue", undue, "mask only where causal is true", mask="undue"), seen
            yield Mistake("P", "mask/undue", f"{undue}, over P", "mask only where causal is true", mask="after"), seen
            return
        words = {
            "left-out": ("P is made of scores without the mask", "mask the scores with -inf before the softmax"),
            "strict": ("the mask hides the diagonal too", "let a row see its own key: j <= i"),
            "inverted": ("the mask shows what it should hide (j >= i)", "show j <= i"),
            "inverted-strict": ("the mask is upside down (j > i)", "show j <= i, which is the opposite of this mask"),
            "late": ("the mask shows one key too many (j <= i + 1)", "show j <= i"),
        }
        for name, mask in self.masks.items():
            yield Mistake("P", f"mask/{name}", *words[name], mask=name), mask
        zero = "masked scores are 0 where they should be -inf, so masked keys keep a share"
        yield Mistake("P", "mask/zero", zero, "fill with -inf", mask="zero"), self.valid
        after = "the mask is applied to P after the softmax, so rows do not sum to one"
        yield (
            Mistake("P", "mask/after", after, "mask the scores with -inf before the softmax", mask="after"),
            self.valid,
        )
        lse = "P is exp(S - LSE) with unmasked scores and a masked LSE"
        yield Mistake("P", "mask/left-out", lse, "mask the scores with -inf again, or P with 0", mask="lse"), self.valid

    def wrong_rows(self) -> Iterator[Form]:
        """One number a row that is taken for delta. Of two words for the same numbers the first is told."""
        p, dp = self.alternates["P"][0].values, self.alternates["dP"][0].values
        others = {"rowsum(dP)": dp.sum(-1), "colsum(P * dP)": (p * dp).sum(-2), "colsum(dP)": dp.sum(-2),
                  "rowsum(P^2 * dP)": (p * p * dp).sum(-1), "max(P * dP)": (p * dp).max(-1),
                  "rowsum(P * P)": (p * p).sum(-1), "rowsum(dP * dP)": (dp * dp).sum(-1),
                  "rowsum(dO)": self.inputs["do"].sum(-1), "rowsum(O)": self.alternates["O"][0].values.sum(-1),
                  "rowsum(P)": p.sum(-1)}  # fmt: skip
        yield from (_row(words, values) for words, values in others.items())
        yield from self._rows_of_features(self.alternates["O"][0])

    def _of_wrong_rows(self) -> Iterator[Form]:
        """Results of a wrong delta, which loops over elements never hold as a row."""
        p, dp, delta = (self.alternates[kind][0].values for kind in ("P", "dP", "delta"))
        length = dp.shape[-1]
        means = {
            f"delta is a mean, 1/{length} (the length) of the sum over the row": length,
            "delta is a mean: it is divided by the keys that a row sees": np.maximum(self.valid.sum(-1), 1),
        }
        others = [_row("rowsum(dP) / the length", dp.mean(-1))]
        for words, count in means.items():
            others.append(Form("delta", "bhm", delta / count, "delta", (Mistake("delta", "delta/factor", words),)))
        for row in (*self.wrong_rows(), *others):
            ds = Form("dS", "bhmn", p * (dp - row.values[..., None]), "dS", row.mistakes)
            yield from (self._product(name, ds) for name in ("dQ", "dK"))

    def _rows_of_features(self, o: Form) -> Iterator[Form]:
        dv = self.weighting_v(self.alternates["P"][0].values).swapaxes(-1, -2) @ self.inputs["do"]
        features = {**self.inputs, "O": o.values, "dV": dv}
        for a, b in itertools.combinations_with_replacement(features, 2):
            if {a, b} == {"do", "O"} and self._tau is None:
                continue
            if features[a].shape == features[b].shape:
                made = _row(f"rowsum({symbol(a)} * {symbol(b)})", (features[a] * features[b]).sum(-1))
                yield replace(made, mistakes=(*(o.mistakes if "O" in (a, b) else ()), *made.mistakes))

    def wrong_dp(self) -> Iterator[Form]:
        """Products of the wrong rows, taken for dP."""
        features = {**self.inputs, "O": self.alternates["O"][0].values}
        for a, b in itertools.product(features, repeat=2):
            if (a, b) not in (("do", "v"), ("q", "k"), ("v", "do"), ("k", "q")) and features[a].shape == features[
                b
            ].shape:
                words = f"{symbol(a)} {symbol(b)}^T"
                mistake = Mistake("dP", "dp/operand", f"{words} stands for dP")
                yield Form("dP", "bhmn", features[a] @ features[b].swapaxes(-1, -2), words, (mistake,))

    def wrong_lazy(self) -> Iterator[Form]:
        """What stands for relu(P + tau / (i + 1)), and dP where the relu is passed over."""
        assert self._tau is not None
        p = self.alternates["P"][0].values
        z, seen = p + self._tau, self.valid
        ways = {
            "left-out": (p, "P stands for relu(P + tau / (i + 1))"),
            "open": (np.maximum(z, 0), "PE is not masked again after tau was added"),
            "no-relu": (np.where(seen, z, 0), "the relu is left out of PE"),
            "by-row": (np.where(seen, np.maximum(p + self._tau * self._count, 0), 0), "tau is not divided by i + 1"),
            "from-0": (np.where(seen, np.maximum(p + self._tau * self._count / np.maximum(self._count - 1, 1), 0), 0),
                       "tau is divided by i, not by i + 1"),
        }  # fmt: skip
        for key, (held, words) in ways.items():
            made = Form("P", "bhmn", held, "PE", (Mistake("O", f"tau/{key}", words),))
            yield from (replace(made, kind=""), *(self._product(name, made) for name in ("O", "dV")))
        open_dp = self.inputs["do"] @ self.inputs["v"].swapaxes(-1, -2)
        passed = Mistake("dP", "dp/relu", "dP does not stop where the relu does")
        yield from (Form("dP", "bhmn", one, "dP", (passed,)) for one in (np.where(seen, open_dp, 0), open_dp))

    def derived(self, found: Form) -> list[Form]:
        """What follows from a form by right formulas, and by one more mistake; `found` is among its kind then."""
        if found.kind not in self.alternates:
            return []
        self.alternates[found.kind].append(found)
        made: list[Form] = []
        if found.kind == "P":
            made += [self._product(name, replace(found, values=self.weighting_v(found.values))) for name in ("O", "dV")]
        if found.kind == "O":
            values = (self.inputs["do"] * found.values).sum(-1)
            made += [Form("delta", "bhm", values, "delta", found.mistakes), *self._rows_of_features(found)]
        if found.kind in ("P", "dP"):
            made += [
                Form("delta", "bhm", (p.values * dp.values).sum(-1), "delta", _together(p, dp))
                for p, dp in itertools.product(self.alternates["P"], self.alternates["dP"])
                if found in (p, dp)
            ]
        if found.kind in ("P", "dP", "delta"):
            made += self.scores_of(found)
        if found.kind == "dP" and found.mistakes[0].key == "dp/operand":
            made += self._scored_by(found)
        if found.kind == "dS":
            made += [self._product(name, found) for name in ("dQ", "dK")]
        return [*made, *(self.products(found) if found.kind in ("P", "dP", "dS") else [])]

    def _scored_by(self, found: Form) -> list[Form]:
        """P of a product of the wrong rows, taken for the scores."""
        came = f"{found.words} stands for Q K^T"
        mistake = Mistake("S", "scores/operand", came)
        values = _softmaxed("", self.scale * found.values, "", self.valid, self.valid)
        assert values is not None
        given = np.where(self.valid, np.exp(self.scale * found.values - self._lse), 0)
        made = [Form("P", "bhmn", p, "P", (mistake,)) for p in (values, given)]
        return [Form("S", "bhmn", found.values, "S", (mistake,)), *made]

    def scores_of(self, found: Form | None = None) -> list[Form]:
        """dS of every P, dP and delta that came, right and with a mistake of its own; with `found`, of that alone."""
        made = []
        for p, dp, delta in itertools.product(*(self.alternates[kind] for kind in ("P", "dP", "delta"))):
            if found is None or found in (p, dp, delta):
                forms = list(_wrong_ds(p, dp, delta, self.raw * self.scale))
                made += forms
                if known := _together(p, dp, delta):  # its own results at once: tiles of dS may not tell what they are
                    follows = not any(mistake.key == "softmax/scores" for mistake in known)
                    made += [self._product(name, forms[1]) for name in ("dQ", "dK") if follows]
        return made

    def _other_do(self) -> Iterator[Form]:
        """What comes of the gradient of another loss than sum(O * dO)."""
        p, o = self.alternates["P"][0], self.alternates["O"][0].values
        others = {"the gradients are those of O.sum()": np.ones_like(o), "O stands in its place": o,
                  "the gradients are those of O.mean()": np.full_like(o, 1 / o.size)}  # fmt: skip
        for words, do in others.items():
            mistake = Mistake("dP", "do/other", f"dO is not used: {words}", "hand dO to the backward")
            yield Form("dV", "bhne", self.weighting_v(p.values).swapaxes(-1, -2) @ do, "dV", (mistake,))
            dp = np.where(self.passes(p.values), do @ self.inputs["v"].swapaxes(-1, -2), 0)
            ds = p.values * (dp - (p.values * dp).sum(-1, keepdims=True))
            yield from (self._product(name, Form("dS", "bhmn", ds, "dS", (mistake,))) for name in ("dQ", "dK"))

    def products(self, matrix: Form) -> list[Form]:
        """A matrix by each of the inputs, transposed and not: a result where it should be another."""
        made = []
        features = {**self.inputs, "O": self.alternates["O"][0].values}
        for other, transposed in itertools.product(features, (False, True)):
            product = Product(matrix.kind, other, transposed)
            if product not in PRODUCTS.values():
                made.append(multiplied(matrix, product, features[other]))
        return made

    def wrong(self) -> list[Form]:
        """Every form with a mistake, of what is right else."""
        first = [self.alternates[kind][0] for kind in ("P", "dP", "dS")]
        made = [*self.wrong_p(), *self.wrong_rows(), *self.wrong_dp(), *self.scores_of(), *self._other_do()]
        made += self._of_wrong_rows()
        made += self.wrong_lazy() if self._tau is not None else ()
        return [*made, *(form for matrix in first for form in self.products(matrix))]


_KINDS = {
    "": ("", ""),
    "queries": ("the softmax is over the queries of a key, not over the keys of a query", "take it over the last axis"),
    "heads": ("the softmax is over the heads, not over the keys", "take it over the last axis"),
    "unnormalised": ("exp(S) is not divided by its sum, so rows do not sum to one", "divide by the sum over the keys"),
    "raw": ("exp(S) is not divided by its sum, so rows do not sum to one", "divide by the sum over the keys"),
    "all": ("the softmax is over all queries and keys together", "take it over the last axis"),
    "scores": ("the scores stand where P is due", "take the softmax over the keys"),
    "transposed": ("P is made of K Q^T, the transposed scores", "make it of Q K^T"),
    "columns": ("exp(S) is divided by its sum over the queries, not over the keys", "sum over the last axis"),
}


def _softmaxed(kind: str, s: Array, key: str, mask: NDArray[np.bool_], valid: NDArray[np.bool_]) -> Array | None:
    """P of the scores by a softmax of some kind; None where it is one of another kind too."""
    s = s.swapaxes(-1, -2) if kind == "transposed" else s
    t = np.where(mask, s, -np.inf)
    if key == "mask/zero":
        t = np.where(mask, s, 0.0)
    elif key == "mask/after":
        t = s
    if key == "mask/left-out" and mask is valid:  # the masked LSE
        lse = np.log(np.exp(np.where(valid, s, -np.inf)).sum(-1, keepdims=True))
        return None if kind else np.exp(s - lse)
    if kind == "scores":
        values = np.where(np.isfinite(t), t, 0)
    elif kind == "raw":
        values = np.exp(t)
    elif kind == "unnormalised":
        values = np.exp(t - t.max(-1, keepdims=True))
    elif kind == "columns":
        powers = np.exp(t - t.max(-1, keepdims=True))
        values = powers / powers.sum(-2, keepdims=True)
    else:
        axis: Any = {"queries": -2, "heads": 1, "all": (-1, -2)}.get(kind, -1)
        powers = np.exp(t - t.max(axis, keepdims=True))
        values = powers / powers.sum(axis, keepdims=True)
    return np.where(mask, values, 0) if key == "mask/after" else np.asarray(values)


def _row(words: str, values: Array) -> Form:
    mistake = Mistake("delta", "delta/operand", f"{words} stands for delta")
    return Form("delta", "bhm", values, words, (mistake,))


def _together(*forms: Form) -> tuple[Mistake, ...]:
    return tuple(dict.fromkeys(mistake for form in forms for mistake in form.mistakes))


def _wrong_ds(p: Form, dp: Form, delta: Form, s: Array) -> Iterator[Form]:
    """dS of these three: by its formula, and with a mistake of its own."""
    known, column = _together(p, dp, delta), delta.values[..., None]
    if known:
        yield Form("", "bhmn", dp.values - column, "dP - delta", known)
        yield Form("dS", "bhmn", p.values * (dp.values - column), "dS", known)
        yield Form("", "bhmn", p.values * dp.values, "P * dP", _together(p, dp))
    ways = {
        "delta-left-out": (p.values * dp.values, "P * dP", "delta is left out of dS", _together(p, dp)),
        "p-left-out": (dp.values - column, "dP - delta", "P is left out of dS", _together(dp, delta)),
        "sign-of-delta": (p.values * (dp.values + column), "P * (dP + delta)", "delta is added in dS", known),
        "outside": (p.values * dp.values - column, "P * dP - delta", "delta is not multiplied by P in dS", known),
        "by-columns": (p.values * (dp.values - delta.values[..., None, :]), "P * (dP - delta^T)",
                       "delta is subtracted along the keys, not along the rows", known),
        "elementwise": (p.values * (1 - p.values) * dp.values, "P * (1 - P) * dP",
                        "dS has the derivative of a sigmoid, without the sum over the row", _together(p, dp)),
        "dp-transposed": (p.values * (dp.values.swapaxes(-1, -2) - column), "P * (dP^T - delta)",
                          "dP is transposed in dS", known),
        "p-transposed": (p.values.swapaxes(-1, -2) * (dp.values - column), "P^T * (dP - delta)",
                         "P is transposed in dS", known),
        "scores": (s * (dp.values - column), "S * (dP - delta)", "dS is made of S, not of P", _together(dp, delta)),
        "dp-for-p": (dp.values * (dp.values - column), "dP * (dP - delta)", "dP stands for P in dS",
                     _together(dp, delta)),
        "p-for-dp": (p.values * (p.values - column), "P * (P - delta)", "P stands for dP in dS", _together(p, delta)),
        "s-for-dp": (p.values * (s - column), "P * (S - delta)", "S stands for dP in dS", _together(p, delta)),
        "o-twice": (p.values * (dp.values - 2 * column), "P * (dP - 2 delta)", "delta is subtracted twice", known),
    }  # fmt: skip
    for key, (values, words, came, inherited) in ways.items():
        yield Form("dS", "bhmn", values, words, (*inherited, Mistake("dS", f"ds/{key}", came)))
