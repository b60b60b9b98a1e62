"""What the P and dS of one-hot problems look like where they are wrong, and a dV whose dO was misread, in words."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..model.case import Case
from ..model.number import in_words, spans
from ..reference import Attention, evaluate
from .compare import tiles_of
from .one_hot import RecoveredValues

ZERO = ", 0 throughout"
"""What is said of a dS of which nothing came."""
# What an explanation may leave of a squared error.
_UNEXPLAINED = 0.01
# P that is no rounding error of 0.
_SEEN = 1e-3
# How far one factor may be from a row of P, of its largest: five roundings of bfloat16. It chooses words, no verdict.
_ALIKE = 0.02
# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, or all.
_AXES = ("b", "h", "m", "d", "bh", "bhm", "md", "bhmd")
# What one reading may leave of a gradient, as a share of its squares: a 16-bit rounding leaves 2^-16 at most.
_ROUNDED = 2.0**-10


def factor_in_words(recovered: RecoveredValues, name: str, tensor: Tensor) -> str:
    """By which one factor P or dS is wrong, in words; "" where no single factor explains it."""
    own = product = squares = of_dt = 0.0
    for _, at, values in recovered.tiles():
        actual, expected = tensor[at].double(), values[name]
        before = values["P"] * (values["dP"] - values["delta"][..., None])
        own += float((actual**2).sum())
        product += float((actual * expected).sum())
        squares += float((expected**2).sum())
        of_dt += float(((actual - before) ** 2).sum())
    if not 0.0 < own < float("inf"):
        return ZERO if own == 0.0 else ""
    factor = product / squares if squares else 0.0
    # Of an error that one factor makes, only rounding is left once it is taken out.
    most = _UNEXPLAINED * (own - 2 * product + squares)
    if own - factor * product <= most:
        return f" by the factor {factor:.4g} throughout"
    is_dt = name == "dS" and recovered.x.softcap is not None and of_dt <= most
    return ", as without the softcap's derivative" if is_dt else ""


def shape_of_p(recovered: RecoveredValues, p: Tensor) -> list[str]:
    """What the errors of a wrong P look like."""
    return _of_entries(recovered, p) or _of_factors(recovered, p)


def _of_entries(recovered: RecoveredValues, p: Tensor) -> list[str]:
    """Entries that are 0 or that are not, where the others are what they should be but for a factor of their row."""
    leaked = hidden = 0
    alike, scattered = True, False
    lost, heads = set[int](), set[int]()
    for tile, at, values in recovered.tiles():
        actual, expected = p[at].double(), values["P"]
        valid = values["valid"].expand_as(actual)
        gone = (actual == 0).all(-1) & (expected > _SEEN).any(-1)
        lost |= {tile.rows.start + row for row in gone.any(0).nonzero().flatten().tolist()}
        heads |= {tile.heads.start + head for head in gone.any(1).nonzero().flatten().tolist()}
        leaked += int((~valid & (actual != 0)).sum())
        missing = valid & (actual == 0) & (expected > _SEEN)
        hidden += int(missing.sum())
        scattered |= bool((missing & ~gone[..., None]).any())
        seen, due = actual * valid, expected * (actual != 0)
        factor = (seen * due).sum(-1, keepdim=True) / (due * due).sum(-1, keepdim=True).clamp(
            min=1e-300
        )
        off = (seen - factor * due).abs()
        alike &= bool((off <= _ALIKE * factor * due.amax(-1, keepdim=True)).all())
    if alike and (leaked or scattered):
        counts = [f"{leaked:,} entries are seen that are masked"] if leaked else []
        counts += [f"{hidden:,} entries are masked that are seen"] if hidden else []
        return [f"the backward has another mask: {' and '.join(counts)}"]
    if lost and not (leaked or scattered):
        rows, of_heads = in_words(spans(sorted(lost)), 6), in_words(spans(sorted(heads)), 6)
        return [f"whole rows of P are 0 (rows {rows}, heads {of_heads}): they never reach dV"]
    return []


def _of_factors(recovered: RecoveredValues, p: Tensor) -> list[str]:
    """One factor for each row, or for each key, by least squares."""
    # Sums of the squares of what came, of that times what is expected, and of the squares of this.
    rows, keys = (recovered.x.q.new_zeros(3, *p.shape[:2], p.shape[axis]) for axis in (2, 3))
    for tile, at, values in recovered.tiles():
        actual, expected = p[at].double(), values["P"]
        for sums, part in enumerate((actual**2, actual * expected, expected**2)):
            rows[sums][at] = part.sum(-1)
            keys[sums, tile.batch, tile.heads] += part.sum(-2)
    error = float((rows[0] - 2 * rows[1] + rows[2]).sum())
    if _explain(rows, error):
        factors = (rows[1] / rows[2])[rows[2] > 0]
        low, high = float(factors.min()), float(factors.max())
        return [f"P is off by one factor a row, {low:.4g} to {high:.4g}"]
    if _explain(keys, error):
        most = 100 * float(((keys[1] / keys[2])[keys[2] > 0] - 1).abs().max())
        return [f"P is off by {most:.2g} % from key to key: each key has one factor in all rows"]
    return []


def _explain(sums: Tensor, error: float) -> bool:
    """Whether factors leave next to nothing of a squared error, so that they differ from 1 by more than the rest."""
    squares, products, expected = sums
    rest = squares - products**2 / expected.clamp(min=1e-300)
    return float(rest.sum()) <= _UNEXPLAINED * error


def reread_do(case: Case, x: Attention, dv: Tensor, tensors: Mapping[str, Tensor]) -> str | None:
    """How dO is misread, "with q's head stride", where that explains the dV that came; None where nothing does."""
    readings = dict(_by_strides(tensors)) | dict(_of_other_heads(case, x.do))
    predicted = {reading: dv.double() * 0 for reading in readings}
    for tile in tiles_of(case, x):
        pe, kv_heads = evaluate(x, tile)["PE"], x.kv_heads(tile)
        for reading, do in readings.items():
            share = pe.mT @ do[tile.batch, tile.heads, tile.rows].double()
            predicted[reading][tile.batch].index_add_(0, kv_heads, share)
    for reading, expected in predicted.items():
        error = ((dv.double() - expected) ** 2).sum() / (expected**2).sum().clamp(min=1e-300)
        if bool(error <= _ROUNDED):
            return reading
    return None


def _by_strides(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Every other reading of dO by another tensor's strides, each once."""
    own, named = tensors["do"], {"b": "batch", "h": "head", "m": "row", "d": "dim"}
    tried, elements = {own.stride()}, own.untyped_storage().nbytes() // own.element_size()
    others = {name: of for name, of in tensors.items() if of.dim() == 4 and name != "do"}
    for name, axes in ((name, axes) for name in others for axes in _AXES):
        pairs = zip("bhmd", own.stride(), others[name].stride(), strict=True)
        strides = tuple(theirs if axis in axes else mine for axis, mine, theirs in pairs)
        steps = ((n - 1) * stride for n, stride in zip(own.shape, strides, strict=True))
        if strides not in tried and own.storage_offset() + sum(steps) < elements:
            tried.add(strides)
            words = "every" if len(axes) == 4 else " and ".join(named[axis] for axis in axes)
            yield f"with {name}'s {words} stride", own.as_strided(own.shape, strides)


def _of_other_heads(case: Case, do: Tensor) -> Iterator[tuple[str, Tensor]]:
    """dO of the head that a wrong index leads to."""
    heads, kv_heads = torch.arange(case.heads, device=do.device), case.kv_heads
    if case.heads > 1:
        yield "of head 0 in every head", do[:, heads * 0]
    if 1 < kv_heads < case.heads:
        yield "of head h // group, its key head's number", do[:, heads * kv_heads // case.heads]
        yield "of head h % kv_heads", do[:, heads % kv_heads]
