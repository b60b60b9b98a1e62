"""Conventions: an intermediate that a target exports in other units, while all that is made of it is right.

Kernels hold -delta to add it, dS with the scale in it, LSE in base 2 or less the row's maximum. Their gradients show
that they use it rightly. So a relation is fitted, and the export is read by it and judged by its budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, evaluate
from ..reference.attention import MATRICES
from ..runtime.run import Trace
from .compare import Comparison, tiles_of

Read = Callable[[Tensor], Tensor]

# What is made of each; of these the gradients alone tell that it was used rightly.
BELOW = {
    "LSE": ("P", "delta", "dS", "dQ", "dK", "dV"), "P": ("O", "delta", "dS", "dQ", "dK", "dV"),
    "dP": ("delta", "dS", "dQ", "dK"), "delta": ("dS", "dQ", "dK"), "dS": ("dQ", "dK"),
}  # fmt: skip
TELLING = frozenset(("dQ", "dK", "dV"))
# How near the factor that is measured must be to one that has a name.
NEAR = 1e-2


@dataclass(frozen=True)
class Convention:
    """A relation of what is exported to what it is."""

    name: str
    relation: str
    """What it exports, "-delta"."""
    read: Read
    """From what is exported to what it is."""

    @property
    def sentence(self) -> str:
        """The note in one sentence."""
        return f"exported in another convention: {self.name} = {self.relation}; what is made of it is right"


def in_other_conventions(
    case: Case,
    x: Attention,
    trace: Trace,
    plain: Comparison,
    compared: Callable[[Trace], Comparison],
) -> tuple[Trace, Comparison, tuple[Convention, ...]]:
    """The trace with what it exports in other conventions read by these, that compared, and the conventions.

    Args:
        plain: the comparison of the trace as it is.
        compared: compares another.
    """
    found = tuple(
        convention
        for name in BELOW
        if (convention := _convention(case, x, trace, plain, name)) is not None
    )
    if not found:
        return trace, plain, ()
    read = {
        one.name: one.read(trace.values[one.name].double()).to(trace.values[one.name].dtype)
        for one in found
    }
    other = replace(trace, values={**trace.values, **read})
    comparison = compared(other)
    wrong = {name for name, finding in comparison.findings.items() if finding.mismatched}
    if any(wrong & {one.name, *BELOW[one.name]} for one in found):
        return trace, plain, ()
    return other, comparison, found


def _convention(
    case: Case, x: Attention, trace: Trace, plain: Comparison, name: str
) -> Convention | None:
    """The first relation by which an export that is wrong comes near to what it should be."""
    finding = plain.findings.get(name)
    is_wrong = (
        finding is not None and finding.mismatched and trace.sources.get(name) == "exported"
    )
    below = plain.findings.keys() & {*BELOW[name]}
    if (
        not is_wrong
        or not below & TELLING
        or any(plain.findings[one].mismatched for one in below - BELOW.keys())
    ):
        return None
    return relation_of(case, x, name, trace.values[name].double())


def relation_of(case: Case, x: Attention, name: str, actual: Tensor) -> Convention | None:
    """The first relation by which an intermediate comes near to what it should be; None where none does."""
    values = _expected(case, x, name)
    relations = _relations(case, name, actual, values)
    return next((one for one in relations if _is_near(one.read(actual), values[name])), None)


def _expected(case: Case, x: Attention, name: str) -> dict[str, Tensor]:
    """What an intermediate should be, LSE, and "most", the largest score of each row; whole."""
    lengths = (x.n_batch, x.n_heads, x.n_query)
    shape = (*lengths, x.n_key) if name in MATRICES else x.do.shape if name == "O" else lengths
    found = {"LSE": x.q.new_zeros(lengths), "most": x.q.new_zeros(lengths)} | {
        name: x.q.new_zeros(shape)
    }
    for tile in tiles_of(case, x):
        values = evaluate(x, tile)
        values["most"] = values["S"].amax(-1)
        for one, whole in found.items():
            whole[tile.batch, tile.heads, tile.rows] = values[one]
    return found


def _relations(
    case: Case, name: str, actual: Tensor, values: Mapping[str, Tensor]
) -> Iterator[Convention]:
    log2e, most = math.log2(math.e), values["most"]
    if name == "LSE":
        yield Convention(name, "LSE * log2(e)", lambda given: given / log2e)
        yield Convention(name, "LSE - max S", lambda given: given + most)
        yield Convention(name, "(LSE - max S) * log2(e)", lambda given: given / log2e + most)
        yield Convention(name, "exp(LSE - max S)", lambda given: given.log() + most)
        yield Convention(name, "exp(LSE)", torch.log)
    if name == "P":
        yield Convention(
            name, "exp(S - max S)", lambda given: given * (most - values["LSE"]).exp()[..., None]
        )
    if name in MATRICES and actual.shape == actual.mT.shape:
        yield Convention(name, f"{name}^T", lambda given: given.mT)
    measured = _factor(actual, values[name])
    if measured is not None:
        words, factor = _named(case, measured)
        yield Convention(
            name,
            f"-{name}" if words == "-1" else f"{words} * {name}",
            lambda given: given / factor,
        )


def _factor(actual: Tensor, expected: Tensor) -> float | None:
    """What most of the larger elements are times; None of none."""
    sizes = expected.abs().nan_to_num(posinf=0.0)
    large = (sizes >= 0.1 * sizes.max()) & (sizes > 0)
    ratios = (actual / expected)[large]
    factor = float(ratios.median()) if len(ratios) else 0.0
    return factor if math.isfinite(factor) and factor and abs(factor - 1) > NEAR else None


def _named(case: Case, measured: float) -> tuple[str, float]:
    """A factor and its name: those that kernels multiply in, else the number."""
    log2e = math.log2(math.e)
    plain = {
        "1": 1.0,
        "scale": case.scale,
        "log2(e)": log2e,
        "ln(2)": 1 / log2e,
        "scale * log2(e)": case.scale * log2e,
    }
    plain |= {
        "1/scale": 1 / case.scale if case.scale else 1.0,
        "scale^2": case.scale**2,
        "2": 2.0,
        "1/2": 0.5,
    }
    both = plain | {f"-{words}": -factor for words, factor in plain.items()}
    words, factor = min(
        both.items(), key=lambda known: abs(measured / known[1] - 1) if known[1] else math.inf
    )
    return (words, factor) if abs(measured / factor - 1) < NEAR else (f"{measured:.4g}", measured)


def _is_near(actual: Tensor, expected: Tensor) -> bool:
    """Whether most elements are within a hundredth of the largest; the budget is asked afterwards."""
    error, size = (actual - expected).abs(), expected[expected.isfinite()].abs().max()
    return bool((((actual == expected) | (error <= NEAR * size)).double().mean() > 0.9).item())
