"""The table of intermediates: name, axes, formula and parents in each family, in dataflow order.

A row added here adds an intermediate everywhere: to traces, comparison, blame, tables and labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """How one family computes an intermediate."""

    axes: str
    """One letter an axis: b batch, h head, g key/value head, m query row, n key, d head dim, e value head dim,
    w distance, 1 broadcast."""
    formula: str
    parents: tuple[str, ...]
    """The intermediates and inputs that the formula reads."""


@dataclass(frozen=True)
class Intermediate:
    """One row of the table."""

    name: str
    needs: str
    """The optional input without which this does not exist; "" where it always does."""
    softmax: Step | None
    lazy: Step | None

    def step(self, family: str) -> Step | None:
        """How `family` ("softmax" or "lazy") computes it; None where it does not exist."""
        return self.lazy if family == "lazy" else self.softmax


def slots(axes: str) -> tuple[str, str, str, str]:
    """The letters of an intermediate's batch, head, row and column axes; "" for one that is absent or broadcast."""
    whole = (axes if axes[0] in "b1" else "1" + axes).ljust(4, "1")
    batch, head, row, col = ("" if letter == "1" else letter for letter in whole)
    return batch, head, row, col


def _both(name: str, axes: str, formula: str, *parents: str) -> Intermediate:
    step = Step(axes, formula, parents)
    return Intermediate(name, "", step, step)


TABLE = (
    _both("LSE", "bhm", "log sum_j exp(S)", "q", "k", "bias"),
    _both("P", "bhmn", "exp(S - LSE)", "q", "k", "bias", "LSE"),
    Intermediate(
        "O", "", Step("bhme", "P V", ("P", "v")), Step("bhme", "relu(P + tau / (i + 1)) V", ("P", "v", "tau"))
    ),
    Intermediate(
        "dP", "", Step("bhmn", "dO V^T", ("do", "v")), Step("bhmn", "[Z > 0] * (dO V^T)", ("do", "v", "P", "tau"))
    ),
    Intermediate("delta", "", Step("bhm", "rowsum(dO * O)", ("do", "O")), Step("bhm", "rowsum(P * dP)", ("P", "dP"))),
    _both("dS", "bhmn", "P * (dP - delta)", "P", "dP", "delta"),
    _both("dQ", "bhmd", "scale * dS K", "dS", "k"),
    _both("dK", "bgnd", "scale * dS^T Q", "dS", "q"),
    Intermediate(
        "dV", "", Step("bgne", "P^T dO", ("P", "do")), Step("bgne", "relu(P + tau / (i + 1))^T dO", ("P", "do", "tau"))
    ),
    Intermediate(
        "dBias",
        "bias",
        Step("1hmn", "dT, summed over what bias is broadcast along", ("dS",)),
        Step("hw", "sum over i - j = w of dS", ("dS",)),
    ),
    Intermediate("dSink", "sinks", Step("h", "-sum exp(sink - LSE) * delta", ("LSE", "delta", "sinks")), None),
    Intermediate("dTau", "tau", None, Step("h", "sum of dP / (i + 1)", ("dP",))),
)

_BY_NAME = {row.name.lower(): row for row in TABLE} | {"out": TABLE[2]}


def names() -> tuple[str, ...]:
    """Every name, in dataflow order."""
    return tuple(row.name for row in TABLE)


def lookup(name: str) -> Intermediate | None:
    """The row of a name, whatever its case; None where there is none."""
    return _BY_NAME.get(name.lower())


def steps(family: str) -> Iterator[tuple[Intermediate, Step]]:
    """The rows that exist in a family, each with the family's step, in dataflow order."""
    for row in TABLE:
        step = row.step(family)
        if step is not None:
            yield row, step


GRADIENT_OF = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sinks": "dSink", "tau": "dTau"}
"""By input."""
KINDS = {"b": "b", "h": "h", "g": "h", "m": "m", "n": "m", "d": "d", "e": "d", "w": "d"}
"""Which axes stand for one another in different tensors: batches, heads, rows or keys, and innermost axes."""
_GRADIENTS = re.compile(r"(?:dbias|dsink|dtau|delta|lse|dq|dk|dv|dp|ds)+")


def is_named_after(kernel: str, intermediate: str) -> bool:
    """Whether a kernel's name says that it computes a gradient: `lazy_dkdv_kernel` computes dK and dV, and no other.

    Only words made up entirely of names of gradients count, and no letters inside other words.
    """
    name = intermediate.lower()
    words = [word for word in re.split(r"[^a-z]+", kernel.lower()) if _GRADIENTS.fullmatch(word)]
    return any(name in re.findall(r"dbias|dsink|dtau|delta|lse|dq|dk|dv|dp|ds", word) for word in words)
