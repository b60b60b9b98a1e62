"""Conventions: an intermediate that a target exports, or a file holds, in other units or another order of axes.

Kernels hold -delta, dS with the scale in it or LSE in base 2, and their gradients show that they use it rightly. So a
relation is fitted, and the export is read by it and judged by its budget.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.case import Case
from ..model.failures import InputsFailure, TargetFailure
from ..reference import Attention, Tile, evaluate
from ..reference.attention import MATRICES
from ..runtime.run import Trace
from .compare import Comparison, allowed_on, attention_of, judge, tiles_of
from .declared_precision import ROUNDED, precision_of, with_roundings

_LOG2E = math.log2(math.e)
# What is made of each; of these the gradients alone tell that it was used rightly.
BELOW = {
    "LSE": ("P", "delta", "dS", "dQ", "dK", "dV"), "P": ("O", "delta", "dS", "dQ", "dK", "dV"),
    "dP": ("delta", "dS", "dQ", "dK"), "delta": ("dS", "dQ", "dK"), "dS": ("dQ", "dK"),
}  # fmt: skip
# How near the factor that is measured must be to one that has a name, and most elements to what they should be.
NEAR = 1e-2


@dataclass(frozen=True)
class Convention:
    """A relation of what is exported to what it is."""

    name: str
    relation: str
    """What it exports, "-delta"."""
    read: Callable[[Tensor], Tensor]
    """From what is exported to what it is."""

    @property
    def sentence(self) -> str:
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
    values, found = dict(trace.values), list[Convention]()
    for name in BELOW:
        if _may_be_another(trace, plain, name):
            relation = relation_of(case, x, name, values[name].double())
            found += [] if relation is None else [relation]
    for convention in found:
        actual = values[convention.name]
        values[convention.name] = convention.read(actual.double()).to(actual.dtype)
    if found:
        other = replace(trace, values=values)
        comparison = compared(other)
        judged = {at for one in found for at in (one.name, *BELOW[one.name])}
        judged &= comparison.findings.keys()
        if not any(comparison.findings[at].mismatched for at in judged):
            return other, comparison, tuple(found)
    return trace, plain, ()


def _may_be_another(trace: Trace, plain: Comparison, name: str) -> bool:
    """Whether an export is wrong by itself, and gradients that are made of it right."""
    finding = plain.findings.get(name)
    if finding is None or not finding.mismatched or trace.sources.get(name) != "exported":
        return False
    below = plain.findings.keys() & {*BELOW[name]}
    wrong = [one for one in below - BELOW.keys() if plain.findings[one].mismatched]
    return not below.isdisjoint(("dQ", "dK", "dV")) and not wrong


def relation_of(case: Case, x: Attention, name: str, actual: Tensor) -> Convention | None:
    """The first relation by which an intermediate comes near to what it should be; None where none does."""
    values = _expected(case, x, name)
    expected = values[name]
    size = expected[expected.isfinite()].abs().max()
    for relation in _relations(case, name, actual, values):
        read = relation.read(actual)
        near = (read == expected) | ((read - expected).abs() <= NEAR * size)
        if bool(near.double().mean() > 0.9):  # the budget is asked afterwards
            return relation
    return None


def _expected(case: Case, x: Attention, name: str) -> dict[str, Tensor]:
    """What an intermediate should be, LSE, and "most", the largest score of each row; whole."""
    lengths = (x.n_batch, x.n_heads, x.n_query)
    shape = (*lengths, x.n_key) if name in MATRICES else x.do.shape if name == "O" else lengths
    shapes = {"LSE": lengths, "most": lengths, name: shape}
    found = {one: x.q.new_zeros(of) for one, of in shapes.items()}
    for tile in tiles_of(case, x):
        values = evaluate(x, tile)
        values["most"] = values["S"].amax(-1)
        for one, whole in found.items():
            whole[tile.batch, tile.heads, tile.rows] = values[one]
    return found


def _relations(
    case: Case, name: str, actual: Tensor, values: Mapping[str, Tensor]
) -> Iterator[Convention]:
    most = values["most"]
    if name == "LSE":
        yield Convention(name, "LSE * log2(e)", lambda given: given / _LOG2E)
        yield Convention(name, "LSE - max S", lambda given: given + most)
        yield Convention(name, "(LSE - max S) * log2(e)", lambda given: given / _LOG2E + most)
        yield Convention(name, "exp(LSE - max S)", lambda given: given.log() + most)
        yield Convention(name, "exp(LSE)", torch.log)
    if name == "P":
        share = (most - values["LSE"]).exp()[..., None]
        yield Convention(name, "exp(S - max S)", lambda given: given * share)
    if name in MATRICES and actual.shape == actual.mT.shape:
        yield Convention(name, f"{name}^T", lambda given: given.mT)
    # What most of the larger elements are times.
    sizes = values[name].abs().nan_to_num(posinf=0.0)
    large = (sizes >= 0.1 * sizes.max()) & (sizes > 0)
    ratios = (actual / values[name])[large]
    measured = float(ratios.median()) if len(ratios) else 0.0
    if math.isfinite(measured) and measured and abs(measured - 1) > NEAR:
        words, factor = _named(case, measured)
        relation = f"-{name}" if words == "-1" else f"{words} * {name}"
        yield Convention(name, relation, lambda given: given / factor)


def _named(case: Case, measured: float) -> tuple[str, float]:
    """A factor and its name: those that kernels multiply in, else the number."""
    scale = case.scale or 1.0
    named = {
        "1": 1.0, "scale": scale, "log2(e)": _LOG2E, "ln(2)": 1 / _LOG2E, "scale * log2(e)": scale * _LOG2E,
        "1/scale": 1 / scale, "scale^2": scale**2, "2": 2.0, "1/2": 0.5,
    }  # fmt: skip
    named |= {f"-{words}": -factor for words, factor in named.items()}
    words, factor = min(named.items(), key=lambda known: abs(measured / known[1] - 1))
    return (
        (words, factor) if abs(measured / factor - 1) < NEAR else (f"{measured:.4g}", measured)
    )


# Results of a forward, and how a file calls them.
_KEYS = {"LSE": "lse", "O": "o"}
# O of another reading differs by about its own size; the roundings of 16-bit kernels by a hundredth of it.
_ALIKE = 0.02
# q, k, v and do must be all there is, so that their axes may be swapped.
_OTHER_INPUTS = ("bias", "seqlens", "mask", "alibi", "sinks", "keep", "cu_seqlens_q", "tau")


def refuse_wrong_forward(case: Case, values: Mapping[str, Tensor], keys: frozenset[str]) -> None:
    """Raises InputsFailure where O or LSE of a file are not those of its q, k and v in the coarsest arithmetic.

    Args:
        keys: which of "o" and "lse" the file holds and the target takes.
    """
    given = {name: values[key] for name, key in _KEYS.items() if key in keys}
    if not given:
        return
    x, wrong = attention_of(case, values), dict.fromkeys(given, 0)
    precision = precision_of(case.dtype, "tf32")
    if case.dtype != "float32":
        precision = with_roundings(precision, ROUNDED, 16)
    for tile in tiles_of(case, x):
        expected = evaluate(x, tile)
        budget = allowed_on(x, tile, expected, precision)
        live = expected["valid"].any(-1)  # the rows that see a key
        for name, whole in given.items():
            right = judge(whole[tile.batch, tile.heads, tile.rows], expected, budget, name).right
            wrong[name] += int((~right.reshape(*live.shape, -1).all(-1) & live).sum())
    for name, count in wrong.items():
        if count:
            key, of = _KEYS[name], x.n_batch * x.n_heads * x.n_query
            relation = relation_of(case, x, name, given[name].double())
            words = f"it is {relation.relation}" if relation else f"{count} of {of} rows differ"
            raise InputsFailure(
                f"{case.inputs}: its {key} is not the {name} of its q, k and v: {words}",
                f"mend the file, say the options that it was made with, or leave {key} out: it is computed then",
            )


def refuse_misreading(
    x: Attention, trace: Trace, comparison: Comparison, given: Container[str], target: str
) -> None:
    """Raises TargetFailure where O of a wrong run is right with q, k, v and dO as [B, L, H, D].

    Args:
        given: the names of what the file of inputs holds.
    """
    if "O" not in trace.values or not comparison.findings["O"].mismatched:
        return
    o = trace.values["O"].transpose(1, 2)
    has_others = "o" in given or any(getattr(x, name) is not None for name in _OTHER_INPUTS)
    if has_others or x.q.shape[2] % x.k.shape[2]:
        return
    x = replace(x, **{name: getattr(x, name).transpose(1, 2) for name in ("q", "k", "v", "do")})
    expected = evaluate(x, Tile(0, slice(0, 1), slice(0, x.n_query)))["O"]
    if bool((o[0, :1].double() - expected).abs().max() <= _ALIKE * expected.abs().max()):
        raise TargetFailure(
            f"O of target {target!r} is wrong as its inputs were read, and right where they are [B, L, H, D]; "
            "the order here is [B, H, L, D]",
            "keep them with --order blhd, and check it with --shapes blhd",
        )
