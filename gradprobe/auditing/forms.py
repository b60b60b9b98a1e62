"""Forms: what a value of a hand-written attention backward may be, right or wrong in a way in which people write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model.intermediates import SUBEXPRESSIONS, TABLE, Product, plain, steps

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
