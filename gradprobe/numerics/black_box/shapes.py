"""What the errors of a recovered P look like, in words: rows that are lost, another mask, one factor a row or a key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...model.number import in_words, spans
from ...reference import evaluate
from ..compare import tiles_of
from ..evidence import Measured
from .recover import UNEXPLAINED, RecoveredValues

# P that is no rounding error of 0.
_SEEN = 1e-3
# How far one factor may be from a row of P, of its largest: five roundings of bfloat16. It chooses words, no verdict.
_ALIKE = 0.02


def shape_in_words(recovered: RecoveredValues, measured: Measured, *, may_read_lse: bool) -> list[str]:
    """What the errors of P look like.

    Args:
        may_read_lse: whether the target is given LSE, gives it, or launches kernels that may hand it on.
    """
    finding = measured.comparison.findings.get("P")
    if finding is None or not finding.mismatched:
        return []
    return _of_entries(recovered, measured) or _of_factors(recovered, measured, may_read_lse=may_read_lse)


def _of_entries(recovered: RecoveredValues, measured: Measured) -> list[str]:
    """Entries that are 0 or that are not, where the others are what they should be but for a factor of their row."""
    leaked = hidden = 0
    alike, scattered = True, False
    lost: set[int] = set()
    heads: set[int] = set()
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


@dataclass(frozen=True)
class _Factors:
    """One factor for each row, or for each key, by least squares."""

    squares: Tensor
    """Sums of the squares of what came, by row or by key."""
    products: Tensor
    """Of what came and what is expected."""
    expected: Tensor
    """Of the squares of what is expected."""

    def explain(self, error: float) -> bool:
        """Whether they leave next to nothing of a squared error, so that they differ from 1 by more than the rest."""
        left = self.squares - self.products**2 / self.expected.clamp(min=1e-300)
        return float(left.sum()) <= UNEXPLAINED * error

    @property
    def values(self) -> Tensor:
        return (self.products / self.expected)[self.expected > 0]


def _of_factors(recovered: RecoveredValues, measured: Measured, *, may_read_lse: bool) -> list[str]:
    """One factor for each row, or for each key, that makes P of what came."""
    by_row, by_key, error = list[tuple[Tensor, ...]](), dict[tuple[int, int], tuple[Tensor, ...]](), 0.0
    for tile in tiles_of(recovered.case, measured.x):
        actual = measured.trace.values["P"][tile.batch, tile.heads, tile.rows].double()
        p = evaluate(measured.x, tile)["P"]
        parts, place = (actual**2, actual * p, p**2), (tile.batch, tile.heads.start)
        error += float(((actual - p) ** 2).sum())
        by_row.append(tuple(part.sum(-1).flatten() for part in parts))
        of_keys = tuple(part.sum(-2) for part in parts)
        before = by_key.get(place, of_keys)
        by_key[place] = of_keys if place not in by_key else tuple(a + b for a, b in zip(before, of_keys, strict=True))
    rows = _Factors(*(torch.cat(parts) for parts in zip(*by_row, strict=True)))
    keys = _Factors(*(torch.cat([one.flatten() for one in parts]) for parts in zip(*by_key.values(), strict=True)))
    if rows.explain(error):
        low, high = float(rows.values.min()), float(rows.values.max())
        of_lse = ", as if the backward read an LSE that is not that row's" if may_read_lse else ""
        return [f"P is off by one factor a row, {low:.4g} to {high:.4g}{of_lse}"]
    if keys.explain(error):
        most = 100 * float((keys.values - 1).abs().max())
        return [f"P is off by {most:.2g} % from key to key: each key has one factor in all rows"]
    return []
