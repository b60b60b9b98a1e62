"""Forms: what a value of a hand-written attention backward may be, right or wrong in a way in which people write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DUE = {
    "S": "S = scale * Q K^T", "P": "P = exp(S - LSE), S masked with -inf", "O": "O = P V", "dP": "dP = dO V^T",
    "delta": "delta = rowsum(dO * O) = rowsum(P * dP)", "dS": "dS = P * (dP - delta)", "dQ": "dQ = scale * dS K",
    "dK": "dK = scale * dS^T Q", "dV": "dV = P^T dO", "LSE": "LSE = log sum_j exp(S)",
}  # fmt: skip
"""The formula of each intermediate in the softmax family."""
_LAZY = {
    "O": "O = PE V, PE = relu(P + tau / (i + 1)), 0 where it is masked", "dP": "dP = [PE > 0] * dO V^T",
    "delta": "delta = rowsum(P * dP)", "dV": "dV = PE^T dO",
}  # fmt: skip
PRODUCTS = {"O": ("P", "v", False), "dQ": ("dS", "k", False), "dK": ("dS", "q", True), "dV": ("P", "do", True)}
"""Of each result: the matrix, whether it is transposed, and what it is multiplied by."""
FEATURES = {"q": "bhmd", "k": "bhnd", "v": "bhne", "do": "bhme", "O": "bhme"}
_SHOWN = {"q": "Q", "k": "K", "v": "V", "do": "dO"}


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
    """Of one in the mask, its name among `masks`."""


@dataclass(frozen=True, eq=False)
class Form:
    """One thing that a value may be."""

    kind: str
    """The intermediate or input; "" of what is only a step on the way."""
    axes: str
    values: Array
    words: str
    mistakes: tuple[Mistake, ...] = ()
    product: tuple[str, str, bool] | None = None
    """Of a product: the kind of the matrix, that of what it is multiplied by, and whether the matrix is transposed."""


def due_in(family: str) -> Mapping[str, str]:
    """The formula of each intermediate in a family."""
    return DUE | _LAZY if family == "lazy" else DUE


def shown(kind: str) -> str:
    """The name of an input or intermediate as people write it."""
    return _SHOWN.get(kind, kind)


def product_words(product: tuple[str, str, bool]) -> str:
    matrix, other, transposed = product
    return f"{shown(matrix)}{'^T' if transposed else ''} {shown(other)}"
