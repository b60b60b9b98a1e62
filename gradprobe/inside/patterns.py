"""What the errors of recovered intermediates look like: one factor, another mask, lost rows, one delta a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..budgets.roundings import rounding_shift
from ..cases.case import Case
from ..judging.compare import allowed_on, attention_of, tiles_of
from ..judging.measured import Measured
from ..reference import evaluate
from ..spans import in_words, spans
from .onehot import ZERO_KEYS, plan, shown_together
from .recover import Recovered
from .recovery import quotient_error, slope_of

if TYPE_CHECKING:
    from torch import Tensor

# P that is no rounding error of 0.
_SEEN = 1e-3
# How far one factor may be from a row of P, of its largest: five roundings of bfloat16. It chooses words, no verdict.
_ALIKE = 0.02
# What an explanation of a wrong dS may leave of its squared error.
_UNEXPLAINED = 0.01
# What is said of a dS of which nothing came.
ZERO = ", 0 throughout"


def factor_in_words(case: Case, recovered: Recovered, name: str, tensor: Tensor) -> str:
    """By which one factor P or dS is wrong, in words; "" where no single factor explains it."""
    x = attention_of(case, recovered.values)
    # Sums of actual * expected and of expected^2, for what is meant and for dS before the softcap's derivative.
    sums = {name: [0.0, 0.0], "dT": [0.0, 0.0]}
    own = 0.0
    for tile in tiles_of(case, x):
        actual, values = tensor[tile.batch, tile.heads, tile.rows].double(), evaluate(x, tile)
        own += float((actual**2).sum())
        before = values["P"] * (values["dP"] - values["delta"][..., None])
        for of, expected in ((name, values[name]), ("dT", before)):
            sums[of][0] += float((actual * expected).sum())
            sums[of][1] += float((expected**2).sum())
    if not 0.0 < own < float("inf"):
        return ZERO if own == 0.0 else ""
    products, squares = sums[name]
    factor = products / squares if squares else 0.0
    # Of an error that one factor makes, only rounding is left once it is taken out.
    most = _UNEXPLAINED * (own - 2 * products + squares)
    if own - factor * products <= most:
        return f" by the factor {factor:.4g} throughout"
    of_dt = own - 2 * sums["dT"][0] + sums["dT"][1]
    return ", as without the softcap's derivative" if name == "dS" and x.softcap is not None and of_dt <= most else ""


def are_one_fault(case: Case, recovered: Recovered) -> bool:
    """Whether the dS that dQ shows is wrong in the same way as the dS that dK shows.

    Compared are elements that one probe shows in both: between probes a misread value may differ.
    """
    x, layout = attention_of(case, recovered.values), plan(case)
    assert layout is not None
    together = shown_together(case, layout).to(x.q.device)
    apart = errors = 0.0
    for tile in tiles_of(case, x):
        place = (tile.batch, tile.heads, tile.rows)
        one, other = (recovered.by[name][place].double() for name in ("dQ", "dK"))
        expected, both = evaluate(x, tile)["dS"], together[tile.heads, tile.rows]
        apart += float(((one - other) ** 2 * both).nan_to_num(0.0).sum())
        errors += float((((one - expected) ** 2 + (other - expected) ** 2) * both).nan_to_num(0.0).sum())
    return apart <= _UNEXPLAINED * errors


def is_one_delta_a_row(case: Case, measured: Measured, recovered: Recovered) -> bool:
    """Whether all keys without a value show the same delta for each row."""
    x, values, precision = measured.x, recovered.trace.values, measured.comparison.precision
    for tile in tiles_of(case, x):
        place = (tile.batch, tile.heads, tile.rows)
        expected = evaluate(x, tile)
        shift = rounding_shift(x, tile, expected, precision)
        rows = allowed_on(x, tile, expected, precision, shift, recovered.recovery).rows
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


def shape_in_words(case: Case, measured: Measured) -> list[str]:
    """What the errors of P look like: rows that are lost, another mask, or one factor a row."""
    finding = measured.comparison.findings.get("P")
    if finding is None or not finding.mismatched:
        return []
    leaked = hidden = 0
    by_row, alike, scattered = True, True, False
    lost: set[int] = set()
    heads: set[int] = set()
    for tile in tiles_of(case, measured.x):
        actual = measured.trace.values["P"][tile.batch, tile.heads, tile.rows].double()
        expected = evaluate(measured.x, tile)
        p, valid = expected["P"], expected["valid"].expand_as(actual)
        gone = (actual == 0).all(-1) & (p > _SEEN).any(-1)
        lost |= {tile.rows.start + row for row in gone.any(0).nonzero().flatten().tolist()}
        heads |= {tile.heads.start + head for head in gone.any(1).nonzero().flatten().tolist()}
        leaked += int((~valid & (actual != 0)).sum())
        missing = valid & (actual == 0) & (p > _SEEN)
        hidden += int(missing.sum())
        scattered |= bool((missing & ~gone[..., None]).any())
        by_row &= _one_factor_a_row(actual, p)
        alike &= _one_factor_a_row(actual * valid, p * (actual != 0))
    if alike and (leaked or scattered):
        counts = [f"{leaked:,} entries are seen that are masked"] if leaked else []
        counts += [f"{hidden:,} entries are masked that are seen"] if hidden else []
        return [f"the backward has another mask: {' and '.join(counts)}"]
    if lost and not (leaked or scattered):
        rows, of_heads = in_words(spans(sorted(lost)), 6), in_words(spans(sorted(heads)), 6)
        return [f"whole rows of P are 0 (rows {rows}, heads {of_heads}): they never reach dV"]
    return ["P is off by one factor a row: the LSE that the backward reads is not that row's"] if by_row else []


def _one_factor_a_row(actual: Tensor, p: Tensor) -> bool:
    factor = (actual * p).sum(-1, keepdim=True) / (p * p).sum(-1, keepdim=True).clamp(min=1e-300)
    return bool(((actual - factor * p).abs() <= _ALIKE * factor * p.amax(-1, keepdim=True)).all())
