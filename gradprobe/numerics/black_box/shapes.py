"""What the errors of a recovered P look like, in words: rows that are lost, another mask, one factor a row or a key."""

from __future__ import annotations

from torch import Tensor

from ...model.number import in_words, spans
from ...reference import evaluate
from ..compare import tiles_of
from ..evidence import MeasuredRun
from .recover import UNEXPLAINED, RecoveredValues

# P that is no rounding error of 0.
_SEEN = 1e-3
# How far one factor may be from a row of P, of its largest: five roundings of bfloat16. It chooses words, no verdict.
_ALIKE = 0.02


def shape_in_words(
    recovered: RecoveredValues, measured: MeasuredRun, *, may_read_lse: bool
) -> list[str]:
    """What the errors of P look like.

    Args:
        may_read_lse: whether the target is given LSE, gives it, or launches kernels that may hand it on.
    """
    finding = measured.comparison.findings.get("P")
    if finding is None or not finding.mismatched:
        return []
    return _of_entries(recovered, measured) or _of_factors(
        recovered, measured, may_read_lse=may_read_lse
    )


def _of_entries(recovered: RecoveredValues, measured: MeasuredRun) -> list[str]:
    """Entries that are 0 or that are not, where the others are what they should be but for a factor of their row."""
    leaked = hidden = 0
    alike, scattered = True, False
    lost, heads = set[int](), set[int]()
    for tile in tiles_of(recovered.case, measured.x):
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
        alike &= _one_factor_a_row(actual * valid, p * (actual != 0))
    if alike and (leaked or scattered):
        counts = [f"{leaked:,} entries are seen that are masked"] if leaked else []
        counts += [f"{hidden:,} entries are masked that are seen"] if hidden else []
        return [f"the backward has another mask: {' and '.join(counts)}"]
    if lost and not (leaked or scattered):
        rows, of_heads = in_words(spans(sorted(lost)), 6), in_words(spans(sorted(heads)), 6)
        return [f"whole rows of P are 0 (rows {rows}, heads {of_heads}): they never reach dV"]
    return []


def _one_factor_a_row(actual: Tensor, p: Tensor) -> bool:
    factor = (actual * p).sum(-1, keepdim=True) / (p * p).sum(-1, keepdim=True).clamp(min=1e-300)
    return bool(((actual - factor * p).abs() <= _ALIKE * factor * p.amax(-1, keepdim=True)).all())


def _of_factors(
    recovered: RecoveredValues, measured: MeasuredRun, *, may_read_lse: bool
) -> list[str]:
    """One factor for each row, or for each key, by least squares."""
    shape = measured.trace.values["P"].shape
    # By row and by key: sums of the squares of what came, of that times what is expected, and of the squares of this.
    rows, keys = (measured.x.q.new_zeros(3, *shape[:2], shape[axis]) for axis in (2, 3))
    error = 0.0
    for tile in tiles_of(recovered.case, measured.x):
        actual = measured.trace.values["P"][tile.batch, tile.heads, tile.rows].double()
        p = evaluate(measured.x, tile)["P"]
        error += float(((actual - p) ** 2).sum())
        for at, part in enumerate((actual**2, actual * p, p**2)):
            rows[at, tile.batch, tile.heads, tile.rows] = part.sum(-1)
            keys[at, tile.batch, tile.heads] += part.sum(-2)
    if _explain(rows, error):
        factors = (rows[1] / rows[2])[rows[2] > 0]
        low, high = float(factors.min()), float(factors.max())
        of_lse = ", as if the backward read an LSE that is not that row's" if may_read_lse else ""
        return [f"P is off by one factor a row, {low:.4g} to {high:.4g}{of_lse}"]
    if _explain(keys, error):
        most = 100 * float(((keys[1] / keys[2])[keys[2] > 0] - 1).abs().max())
        return [f"P is off by {most:.2g} % from key to key: each key has one factor in all rows"]
    return []


def _explain(sums: Tensor, error: float) -> bool:
    """Whether factors leave next to nothing of a squared error, so that they differ from 1 by more than the rest."""
    squares, products, expected = sums
    return (
        float((squares - products**2 / expected.clamp(min=1e-300)).sum()) <= UNEXPLAINED * error
    )
