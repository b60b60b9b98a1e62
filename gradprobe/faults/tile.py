"""M2, M3, ACC: tiles that a sum leaves out, or keeps alone; rows and keys beyond the end that are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile
from .addressed import found_at, offsets, readable
from .hypothesis import EVERYTHING, SIZES, Hypothesis, Observed, sizes_of
from .variant import Formula, Positions

_SUMS = ("dQ", "dK", "dV", "O", "LSE", "delta")


class Effects:
    """What rules hide of a problem; in a short one many sizes of tiles hide the same, and some hide nothing."""

    def __init__(self, x: Attention) -> None:
        x = replace(x, mask=None, bias=None)
        batches = range(x.n_batch if x.seqlens is not None else 1)
        self._places = [Positions(x, Tile(batch, slice(0, 1), slice(0, x.n_query))) for batch in batches]
        self._met = {self._shown("True")}

    def _shown(self, kept: str) -> bytes:
        return b"".join((at.valid[0] & at.value(kept)).cpu().numpy().tobytes() for at in self._places)

    def is_new(self, kept: str) -> bool:
        """Whether a rule hides something, and no other that was asked about hides the same."""
        shown = self._shown(kept)
        is_new = shown not in self._met
        self._met.add(shown)
        return is_new


def tiles_left_out(seen: Observed) -> Iterator[Hypothesis]:
    """Tiles of the usual sizes left out at either end, and sums that keep one tile alone, each effect once."""
    effects = Effects(seen.x)
    first = next((own for own in (*seen.own, *seen.wrong_names) if own in _SUMS), seen.own[0])
    for word, fault_class, does, kept in _every(seen.case):
        if effects.is_new(kept):
            kind, _, what = word.partition("/")
            fault = f"{kind}/{first}-{what}" if what else f"{kind}/{first}"
            yield Hypothesis(fault, fault_class, f"{first} {does}", wrong=EVERYTHING, sees=f"valid & ({kept})")


def _every(case: Case) -> Iterator[list[str]]:
    """The word, the class, what a sum does, and which entries it keeps."""
    for n in sizes_of(case, *SIZES, 256):
        for row in _OF_EITHER if n < max(case.seqlen_q, case.seqlen_k) else ():
            for axis, at in (("row", "i"), ("key", "j")):
                yield [text.format(axis=axis, at=at, end=f"n_{axis}s", n=n) for text in row]
    for m in dict.fromkeys((case.block_m, *SIZES[:3])):
        for n in dict.fromkeys((case.block_n, *SIZES[:3])):
            for row in _OF_BOTH:
                yield [text.format(m=m, n=n, last=m - 1) for text in row]


# What is said of a sum that keeps the last of what is added to it.
OVERWRITTEN = "it is overwritten, not added to"
# What a sum does with tiles of n rows or keys, and what it keeps by their numbers and the length, the likeliest first.
_OF_EITHER = (
    ("tile/last-{axis}s", "M3", "leaves out the {axis}s beyond the last whole tile of {n}",
     "{at} < {end} // {n} * {n}"),
    ("accumulation", "ACC", f"keeps the last tile of {{n}} {{axis}}s alone: {OVERWRITTEN}",
     "{at} >= ({end} - 1) // {n} * {n}"),
    ("tile/last-{axis}s", "M2", "leaves out the last tile of {n} {axis}s", "{at} < ({end} - 1) // {n} * {n}"),
    ("tile/last-{axis}s", "M2", "ends one tile of {n} {axis}s early", "{at} // {n} * {n} < {end} - {n}"),
    ("tile/first-{axis}s", "M2", "leaves out the first {n} {axis}s", "{at} >= {n}"),
    ("tile/{axis}s-beyond", "M2", "leaves out the {axis}s beyond {n}", "{at} < {n}"),
    ("tile/{axis}s-every", "M2", "is made of every {n}th {axis} alone", "{at} % {n} == 0"),
    ("accumulation", "ACC", "keeps the first tile of {n} {axis}s alone", "{at} < {n}"),
)  # fmt: skip
# The same of what tiles of m rows and n keys see by a causal mask and a window.
_OF_BOTH = (
    ("accumulation", "ACC", f"keeps the last tile of {{n}} keys that a row sees alone: {OVERWRITTEN}",
     "j // {n} == (end_key - 1) // {n}"),
    ("tile/last-keys", "M2", "leaves out the last tile of {n} keys that a row may see", "j < end_key // {n} * {n}"),
    ("tile/first-keys", "M2", "leaves out the first tile of {n} keys that a row may see",
     "j >= first_key // {n} * {n} + {n}"),
    ("tile/first-rows", "M2", "skips the first tile of {m} rows that sees each tile of {n} keys",
     "i // {m} > of_first_key(first_row, {n}) // {m}"),
    ("tile/first-rows", "M2", "begins {m} rows late: at the end of each tile of {n} keys, not at its start",
     "i >= (j // {n} * {n} + {n} - 1) // {m} * {m}"),
    ("tile/last-rows", "M2", "ends with the rows that see the first key of each tile of {n}",
     "i // {m} <= (of_first_key(end_row, {n}) - 1) // {m}"),
    ("tile/first-keys", "M2", "begins with the keys that the last row of each tile of {m} sees",
     "j // {n} >= of_row(first_key, {m}, {last}) // {n}"),
    ("tile/last-keys", "M2", "ends with the keys that the first row of each tile of {m} sees",
     "j // {n} <= (of_row(end_key, {m}, 0) - 1) // {n}"),
    ("tile/last-keys", "M2", "ends one tile of {n} keys before the last that each tile of {m} rows sees",
     "j // {n} * {n} < of_row(end_key, {m}, {last}) - {n}"),
    ("accumulation", "ACC", f"keeps the last tile of {{n}} keys that each tile of {{m}} rows sees: {OVERWRITTEN}",
     "j // {n} == (of_row(end_key, {m}, {last}) - 1) // {n}"),
    ("tile/keys-step", "M2", "steps over the keys by {m}, the tile of rows, where tiles of keys hold {n}",
     "j % {m} < {n}"),
    ("tile/rows-step", "M2", "steps over the rows by {n}, the tile of keys, where tiles of rows hold {m}",
     "i % {n} < {m}"),
)  # fmt: skip


def read_beyond_the_end(seen: Observed) -> Iterator[Hypothesis]:
    """Rows beyond the end that reach dK and dV, and keys beyond it that reach dQ; some operands are masked to 0."""
    case, x = seen.case, seen.x
    others = (x.bias, x.mask, x.keep, x.seqlens, x.cu_seqlens_q, x.alibi, x.softcap, x.tau)
    if any(other is not None for other in others):
        return
    for size in sizes_of(case, *SIZES):
        rows, keys = -case.seqlen_q % size, -case.seqlen_k % size
        beyond = f"beyond the last one, up to a whole tile of {size},"
        for read in (("q", "do", "lse", "delta"), ("q", "do"), ("q",)) if rows else ():
            names: dict[str, Any] = {name: _behind(seen, name[1:], rows, read) for name in _ROWS} | {"count": rows}
            made: dict[str, Formula] = {name: (formula, names) for name, formula in _WITH_ROWS.items()}
            summary = f"rows {beyond} are read from the next head and added to dK and dV"
            yield Hypothesis("tail/q", "M3", summary, made, "mask the rows by the length: offs_m < n_ctx", tensor="q")
        for read in (("k", "v"), ("k",)) if keys else ():
            names = {name: _behind(seen, name[1:], keys, read) for name in ("_k", "_v")} | {"count": keys}
            summary = f"keys {beyond} are read from the next head and added to dQ"
            fix = "mask the keys by the length: offs_n < n_ctx"
            yield Hypothesis("tail/k", "M3", summary, {"dQ": (_DQ_WITH_KEYS, names)}, fix, tensor="k")
        if keys:
            # A load pads them with 0, as it does their values.
            made = {"LSE": f"LSE.logaddexp(beyond(keys={keys}).sum(-1).to(LSE).log())"}
            summary = f"keys {beyond} count with a score of 0"
            fix = "mask the scores by the length: tl.where(offs_n < n_ctx, s, -inf)"
            yield Hypothesis("tail/scores", "M3", summary, made, fix, ("LSE", "P", "O"))


# The inputs of rows beyond the end, and P of them; then what is made with these added.
_ROWS = ("_q", "_do", "_lse", "_delta")
_P = "(scale * _q[place] @ k.mT - _lse[place][..., None]).exp() * beyond(rows=count)"
_WITH_ROWS = {
    "dK": f"dK + scale * ({_P} * (_do[place] @ v.mT - _delta[place][..., None])).mT @ _q[place]",
    "dV": f"dV + ({_P}).mT @ _do[place]",
}
_HEADS = "[tile.batch, x.kv_heads(tile)]"
_DQ_WITH_KEYS = (
    f"dQ + scale * ((scale * q @ _k{_HEADS}.mT - LSE[..., None]).exp() * beyond(keys=count)"
    f" * (do @ _v{_HEADS}.mT - delta[..., None])) @ _k{_HEADS}"
)


def _behind(seen: Observed, name: str, count: int, read: Sequence[str]) -> Tensor:
    """[B, H, count, ...] what lies behind the last row of each head; 0 where it is masked."""
    tensor = readable(seen)[name]
    shape = (*tensor.shape[:2], count, *tensor.shape[3:])
    if name not in read:
        return tensor.new_zeros(shape).double()
    at = offsets(shape, tensor.stride()) + tensor.shape[2] * tensor.stride(2)
    return found_at(tensor, at).double().nan_to_num(0.0)
