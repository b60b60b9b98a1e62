"""Recovers P, dP, delta and dS of a target that exposes gradients alone, from its answers to one-hot problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...model.case import Case
from ...model.failures import TargetFailure
from ...model.intermediates import GRADIENT_OF, MATRIX_OF, PRODUCTS
from ...reference import Attention, evaluate
from ...runtime.run import Trace, expected_shapes
from ..budget import RECOVERABLE, Recovery, quotient_error, slope_of
from ..compare import allowed_on, attention_of, tiles_of
from ..evidence import MeasuredRun
from ..range import out_of_range
from .onehot import ZERO_KEYS, ProbePlan, end_to_end, plan, problem, read_probe, shown_together

# Elements of q, and of scores, that the probes of one call have at most: a target may hold its scores.
CALL_ELEMENTS = 1 << 22
CALL_SCORES = 1 << 24
# Scores of all probes together up to which a target is asked: they take no longer than a few runs.
MOST_SCORES = 1 << 24
GRADIENTS = tuple(MATRIX_OF)
SUMS = tuple(name for name in GRADIENT_OF.values() if name not in PRODUCTS)

Answer = Callable[[Case, Mapping[str, Tensor], Mapping[str, Tensor]], Trace]
"""Runs the target on several probes, in the layout under examination; given the first of them alone as well."""


@dataclass(frozen=True)
class RecoveredValues:
    """What the one-hot problems showed."""

    values: Mapping[str, Tensor]
    """The inputs of the first probe, which stand for all: they are one problem."""
    trace: Trace
    """The first probe's own results, with P, dP, delta and dS recovered."""
    by: Mapping[str, Tensor]
    """[B, H, M, N] P as dV shows it, dS as dQ and as dK show it, by the gradient."""
    recovery: Recovery
    case: Case
    plan: ProbePlan

    @cached_property
    def x(self) -> Attention:
        """The problem."""
        return attention_of(self.case, self.values)


def obstacle(case: Case, values: Mapping[str, Tensor], *, most: int = MOST_SCORES) -> str:
    """Why P and dS of a case with some values cannot be recovered; "" where they can be."""
    if case.scale == 0:
        return "at scale 0 nothing of dS reaches dQ and dK"
    layout = plan(case)
    if layout is None:
        return f"that takes 3 head dims of q and k and 2 of v, and there are {case.head_dim} and {case.head_dim_v}"
    if layout.count * case.scores > most:
        return f"that takes {layout.count} problems of this size; a smaller --seqlen shows them"
    beyond = out_of_range(case, problem(case, layout, values, 0))
    return f"in one-hot problems {beyond}" if beyond else ""


def recover(
    case: Case,
    values: Mapping[str, Tensor],
    answer: Answer,
    *,
    one_by_one: bool = False,
    with_p: bool = True,
) -> RecoveredValues:
    """Runs a target on the one-hot problems of a case and reads its intermediates off the gradients.

    Args:
        one_by_one: one probe a call, in the case's own shapes; else as many as fit, end to end along the batch, where
            the target takes another batch than the case's.
        with_p: whether to recover P, which takes another dO in every probe.

    Raises:
        TargetFailure: the target raised on a probe, or refused it.
    """
    layout = plan(case, with_p=with_p and not case.dropout)
    assert layout is not None
    if not one_by_one and case.cu_seqlens_q is None:
        try:
            return _recover(case, values, answer, layout, _at_once(case))
        except TargetFailure:
            pass
    return _recover(case, values, answer, layout, 1)


def _at_once(case: Case) -> int:
    """How many probes a call may have."""
    size = (
        case.batch
        * case.heads
        * max(case.seqlen_q, case.seqlen_k)
        * max(case.head_dim, case.head_dim_v)
    )
    return max(
        1, min(CALL_ELEMENTS // size, CALL_SCORES // math.prod(expected_shapes(case)["P"]))
    )


def _recover(
    case: Case, values: Mapping[str, Tensor], answer: Answer, layout: ProbePlan, at_once: int
) -> RecoveredValues:
    first, shown = None, dict[str, Tensor]()
    for start in range(0, layout.count, at_once):
        indices = range(start, min(start + at_once, layout.count))
        problems = [problem(case, layout, values, index) for index in indices]
        several = replace(
            case,
            batch=case.batch * len(problems),
            seqlens=(case.seqlens or ()) * len(problems) or None,
        )
        trace = answer(several, end_to_end(case, problems), problems[0])
        first = first or _of_first(trace, case)
        shown = shown or _nothing(case, layout, trace)
        for place, index in enumerate(indices):
            batch = slice(place * case.batch, (place + 1) * case.batch)
            read_probe(
                case,
                layout,
                index,
                {name: trace.values[name][batch] for name in _gradients(trace)},
                shown,
            )
    assert first is not None
    unseen = next(iter(shown.values())).new_full(expected_shapes(case)["LSE"], -1).long()
    recovery = Recovery(
        _dtype(first, "dV"), _dtype(first, "dQ", "dK"), abs(layout.factor), unseen
    )
    recovered = RecoveredValues(
        problem(case, layout, values, 0), first, shown, recovery, case, layout
    )
    found = {MATRIX_OF[name]: shown[name] for name in reversed(GRADIENTS) if name in shown}
    return with_matrices(recovered, case, found)


def _gradients(trace: Trace) -> list[str]:
    return [name for name in GRADIENTS if name in trace.values]


def _of_first(trace: Trace, case: Case) -> Trace:
    """The results of the first probe of a call, as far as they belong to its batches alone."""
    kept = {
        name: tensor[: case.batch]
        for name, tensor in trace.values.items()
        if case.axes(name)[0] == "b"
    }
    return Trace(kept, {name: trace.sources[name] for name in kept})


def _nothing(case: Case, layout: ProbePlan, trace: Trace) -> dict[str, Tensor]:
    shape, device = expected_shapes(case)["P"], next(iter(trace.values.values())).device
    names = [name for name in _gradients(trace) if name != "dV" or layout.rows_v]
    return {name: torch.zeros(shape, device=device) for name in names}


def _dtype(trace: Trace, *names: str) -> torch.dtype:
    dtypes = [trace.values[name].dtype for name in names if name in trace.values]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def with_matrices(
    recovered: RecoveredValues, case: Case, found: Mapping[str, Tensor]
) -> RecoveredValues:
    """The same with other P or dS, and with delta and dP derived from them; exposed intermediates stay."""
    known, recovery = recovered.trace, recovered.recovery
    exposed = {
        name: value for name, value in known.values.items() if known.sources[name] != "recovered"
    }
    values = {**known.values, **found, **exposed}
    if {"P", "dS"} <= values.keys():
        quotients, zero_key = _quotients(recovered, values["P"], values["dS"])
        values, recovery = values | quotients | exposed, replace(recovery, zero_key=zero_key)
    order = [name for name in expected_shapes(case) if name in values]
    sources = {name: known.sources.get(name, "recovered") for name in order}
    names = frozenset(RECOVERABLE) - exposed.keys()
    trace = Trace({name: values[name] for name in order}, sources)
    return replace(recovered, trace=trace, recovery=replace(recovery, names=names))


def with_sums(recovered: RecoveredValues, case: Case, alone: Trace) -> RecoveredValues:
    """The same with the totals of the first probe run alone: of several at once they are one sum."""
    known = recovered.trace
    more = {
        name: value
        for name, value in alone.values.items()
        if name in SUMS and name not in known.values
    }
    values = {**known.values, **more}
    order = [name for name in expected_shapes(case) if name in values]
    sources = {name: known.sources.get(name, "exported") for name in order}
    return replace(recovered, trace=Trace({name: values[name] for name in order}, sources))


def _quotients(
    recovered: RecoveredValues, p: Tensor, ds: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """delta = -dS / (P * slope) where dP is 0, and dP = dS / (P * slope) + delta; 0 where P * slope is.

    delta is read at the key without a value that its row sees best: the second result, -1 where it sees none.
    """
    x, delta, dp = recovered.x, torch.zeros_like(p[..., 0]), torch.zeros_like(p)
    zero_key = torch.full_like(delta, -1, dtype=torch.long)
    for tile in tiles_of(recovered.case, x):
        place = (tile.batch, tile.heads, tile.rows)
        share = p[place] * slope_of(x, tile)
        g = (ds[place] / share).masked_fill(share == 0, 0.0)
        best = share[..., ::ZERO_KEYS].max(-1)
        seen = best.values > 0
        of_row = -g.gather(-1, best.indices[..., None] * ZERO_KEYS).masked_fill(
            ~seen[..., None], 0.0
        )
        zero_key[place] = (best.indices * ZERO_KEYS).masked_fill(~seen, -1)
        delta[place] = of_row[..., 0].to(p.dtype)
        dp[place] = (g + of_row).masked_fill(share == 0, 0.0).to(p.dtype)
    return {"delta": delta, "dP": dp}, zero_key


# What an explanation of a wrong dS may leave of its squared error.
UNEXPLAINED = 0.01
# What is said of a dS of which nothing came.
ZERO = ", 0 throughout"


def factor_in_words(recovered: RecoveredValues, name: str, tensor: Tensor) -> str:
    """By which one factor P or dS is wrong, in words; "" where no single factor explains it."""
    x = recovered.x
    # Sums of actual * expected and of expected^2, for what is meant and for dS before the softcap's derivative.
    sums = {name: [0.0, 0.0], "dT": [0.0, 0.0]}
    own = 0.0
    for tile in tiles_of(recovered.case, x):
        actual, values = tensor[tile.batch, tile.heads, tile.rows].double(), evaluate(x, tile)
        own += float((actual**2).sum())
        before = values["P"] * (values["dP"] - values["delta"][..., None])
        for key, expected in ((name, values[name]), ("dT", before)):
            sums[key][0] += float((actual * expected).sum())
            sums[key][1] += float((expected**2).sum())
    if not 0.0 < own < float("inf"):
        return ZERO if own == 0.0 else ""
    products, squares = sums[name]
    factor = products / squares if squares else 0.0
    # Of an error that one factor makes, only rounding is left once it is taken out.
    most = UNEXPLAINED * (own - 2 * products + squares)
    if own - factor * products <= most:
        return f" by the factor {factor:.4g} throughout"
    of_dt = own - 2 * sums["dT"][0] + sums["dT"][1]
    return (
        ", as without the softcap's derivative"
        if name == "dS" and x.softcap is not None and of_dt <= most
        else ""
    )


def are_one_fault(recovered: RecoveredValues) -> bool:
    """Whether the dS that dQ shows is wrong in the same way as the dS that dK shows.

    Compared are elements that one probe shows in both: between probes a misread value may differ.
    """
    x, case = recovered.x, recovered.case
    together = shown_together(case, recovered.plan).to(x.q.device)
    apart = errors = 0.0
    for tile in tiles_of(case, x):
        place = (tile.batch, tile.heads, tile.rows)
        by_queries, by_keys = (recovered.by[name][place].double() for name in ("dQ", "dK"))
        expected, both = evaluate(x, tile)["dS"], together[tile.heads, tile.rows]
        apart += float(((by_queries - by_keys) ** 2 * both).nan_to_num(0.0).sum())
        errors += float(
            (((by_queries - expected) ** 2 + (by_keys - expected) ** 2) * both)
            .nan_to_num(0.0)
            .sum()
        )
    return apart <= UNEXPLAINED * errors


def is_one_delta_a_row(measured: MeasuredRun, recovered: RecoveredValues) -> bool:
    """Whether all keys without a value show the same delta for each row."""
    x, values, precision = measured.x, recovered.trace.values, measured.comparison.precision
    for tile in tiles_of(recovered.case, x):
        place = (tile.batch, tile.heads, tile.rows)
        expected = evaluate(x, tile)
        rows = allowed_on(x, tile, expected, precision, recovered.recovery).rows
        slope, seen = slope_of(x, tile), (expected["P"] > rows["P"])[..., ::ZERO_KEYS]
        quotients = values["dS"][place].double() / (values["P"][place].double() * slope)
        g = quotients[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        allowed = quotient_error(expected, rows, slope)[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        # Errors were bounded for the delta expected; they grow with the one that came.
        growth = 1 + g.abs().amax(-1, keepdim=True) / expected["delta"].abs()[..., None]
        delta = values["delta"][place].double()[..., None]
        if bool((seen & ((g + delta).abs() > 2 * growth * allowed)).any()):
            return False
    return True
