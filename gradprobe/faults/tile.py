"""M2, M3, ACC: tiles that a sum leaves out, or keeps alone; rows and keys beyond the end that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile, live_length
from .addressed import found_at, offsets, readable
from .hypothesis import EVERYTHING, SIZES, Hypothesis, Observed, making
from .variant import Hook, Rule, TileScope

_SUMS = ("dQ", "dK", "dV", "O", "LSE", "delta")


@dataclass(frozen=True)
class Positions:
    """Where the entries of a tile of scores lie; each broadcasts to [m, N]."""

    i: Tensor
    j: Tensor
    diagonal: Tensor
    n_rows: int
    """Live rows of the batch."""
    n_keys: int
    first_key: Tensor
    """[m, 1] and [m, 1]: the keys that a row may see, from and to (exclusive), by causal and the window."""
    end_key: Tensor
    first_row: Tensor
    """[1, N] and [1, N]: the rows that may see a key."""
    end_row: Tensor

    def tile_sees(self, rows: int, keys: int) -> Tensor:
        """[m, N] bool: keys whose tile has any that a causal mask shows to the last row of this row's tile."""
        return self.j // keys * keys <= self.diagonal + (rows - 1 - self.i % rows)

    def of_first_key(self, bound: Tensor, n: int) -> Tensor:
        """Each key's bound on rows, taken at the first key of its tile."""
        return bound.expand_as(self.j)[0][(self.j // n * n)[0]][None]

    def of_row(self, bound: Tensor, m: int, *, last: bool) -> Tensor:
        """Each row's bound on keys, taken at the last row of its tile, or at the first."""
        at = self.i // m * m + (m - 1 if last else 0) - self.i[0]
        return bound[at.clamp(0, len(self.i) - 1)[:, 0]]


Keep = Callable[[Positions], Tensor]
"""Which entries are kept of those that should be seen."""


def positions(x: Attention, tile: Tile) -> Positions:
    """The places of a tile's entries, and how far rows and keys reach."""
    i, j = x.positions(tile)
    left, right = _reach(x, x.n_query + x.n_key)
    shift = 0 if x.cu_seqlens_q is not None else (x.n_key - x.n_query if x.align == "bottom-right" else 0)
    rows = live_length(x, tile.batch)
    keys = x.n_key if x.seqlens is None else rows
    of_row = (i + shift - left).clamp(0, keys), (i + shift + right + 1).clamp(0, keys)
    of_key = (j - shift - right).clamp(0, rows), (j - shift + left + 1).clamp(0, rows)
    return Positions(i, j, x.diagonal(tile), rows, keys, *of_row, *of_key)


def keeping(keep: Keep) -> Rule:
    """A rule that hides what is not kept."""
    return lambda valid, x, tile: valid & keep(positions(x, tile))


def sizes_of(case: Case, sizes: Iterable[int] = SIZES) -> list[int]:
    """The sizes that tiles may have: those of the case first."""
    return [*dict.fromkeys((case.block_m, case.block_n, *sizes))]


def pairs(case: Case) -> list[tuple[int, int]]:
    """The rows and keys that tiles may have: those of the case first."""
    return [*dict.fromkeys(((case.block_m, case.block_n), *((m, n) for m in SIZES for n in SIZES)))]


class Effects:
    """What rules hide of a problem; in a short one many sizes of tiles hide the same, and some hide nothing."""

    def __init__(self, x: Attention) -> None:
        self._x = replace(x, mask=None, bias=None)
        batches = range(x.n_batch if x.seqlens is not None else 1)
        tiles = [Tile(batch, slice(0, 1), slice(0, x.n_query)) for batch in batches]
        self._shown = [(self._x.valid(tile)[0], positions(self._x, tile)) for tile in tiles]
        self._met = {b"".join(valid.cpu().numpy().tobytes() for valid, _ in self._shown)}

    def is_new(self, keep: Keep) -> bool:
        """Whether a rule hides something, and no other that was asked about hides the same."""
        kept = b"".join((valid & keep(at)).cpu().numpy().tobytes() for valid, at in self._shown)
        is_new = kept not in self._met
        self._met.add(kept)
        return is_new


def tiles_left_out(seen: Observed) -> Iterator[Hypothesis]:
    """Tiles of the usual sizes left out at either end, and sums that keep one tile alone, each effect once."""
    effects, case = Effects(seen.x), seen.case
    first = next((own for own in (*seen.own, *seen.wrong_names) if own in _SUMS), seen.own[0])
    for word, fault_class, does, keep in _every(case):
        if effects.is_new(keep):
            kind, _, what = word.partition("/")
            fault = f"{kind}/{first}-{what}" if what else f"{kind}/{first}"
            alter = methodcaller("seeing", keeping(keep))
            yield Hypothesis(fault, fault_class, f"{first} {does}", alter, EVERYTHING)


def _every(case: Case) -> Iterator[tuple[str, str, str, Keep]]:
    """The word, the class, what a sum does, and which entries it keeps."""
    for n in sizes_of(case, (*SIZES, 256)):
        for word, fault_class, does, counted in _OF_EITHER if n < max(case.seqlen_q, case.seqlen_k) else ():
            yield word.format("row"), fault_class, does.format("row", n=n), partial(_of_rows, counted, n)
            yield word.format("key"), fault_class, does.format("key", n=n), partial(_of_keys, counted, n)
    for m in dict.fromkeys((case.block_m, *SIZES[:3])):
        for n in dict.fromkeys((case.block_n, *SIZES[:3])):
            for word, fault_class, does, paired in _OF_BOTH:
                yield word, fault_class, does.format(m=m, n=n), partial(paired, m, n)


def _of_rows(counted: Callable[[Tensor, int, int], Tensor], n: int, at: Positions) -> Tensor:
    return counted(at.i, at.n_rows, n)


def _of_keys(counted: Callable[[Tensor, int, int], Tensor], n: int, at: Positions) -> Tensor:
    return counted(at.j, at.n_keys, n)


# What is said of a sum that keeps the last of what is added to it.
OVERWRITTEN = "it is overwritten, not added to"
# What a sum does with tiles of n rows or keys, and what it keeps by their numbers and the length, the likeliest first.
_OF_EITHER: tuple[tuple[str, str, str, Callable[[Tensor, int, int], Tensor]], ...] = (
    ("tile/last-{}s", "M3", "leaves out the {}s beyond the last whole tile of {n}",
     lambda at, end, n: at < end // n * n),
    ("accumulation", "ACC", f"keeps the last tile of {{n}} {{}}s alone: {OVERWRITTEN}",
     lambda at, end, n: at >= (end - 1) // n * n),
    ("tile/last-{}s", "M2", "leaves out the last tile of {n} {}s", lambda at, end, n: at < (end - 1) // n * n),
    ("tile/last-{}s", "M2", "ends one tile of {n} {}s early", lambda at, end, n: at // n * n < end - n),
    ("tile/first-{}s", "M2", "leaves out the first {n} {}s", lambda at, end, n: at >= n),
    ("tile/{}s-beyond", "M2", "leaves out the {}s beyond {n}", lambda at, end, n: at < n),
    ("tile/{}s-every", "M2", "is made of every {n}th {} alone", lambda at, end, n: at % n == 0),
    ("accumulation", "ACC", "keeps the first tile of {n} {}s alone", lambda at, end, n: at < n),
)  # fmt: skip
# The same of what tiles of m rows and n keys see by a causal mask and a window.
_OF_BOTH: tuple[tuple[str, str, str, Callable[[int, int, Positions], Tensor]], ...] = (
    ("accumulation", "ACC", f"keeps the last tile of {{n}} keys that a row sees alone: {OVERWRITTEN}",
     lambda m, n, at: at.j // n == (at.end_key - 1) // n),
    ("tile/last-keys", "M2", "leaves out the last tile of {n} keys that a row may see",
     lambda m, n, at: at.j < at.end_key // n * n),
    ("tile/first-keys", "M2", "leaves out the first tile of {n} keys that a row may see",
     lambda m, n, at: at.j >= at.first_key // n * n + n),
    ("tile/first-rows", "M2", "skips the first tile of {m} rows that sees each tile of {n} keys",
     lambda m, n, at: at.i // m > at.of_first_key(at.first_row, n) // m),
    ("tile/first-rows", "M2", "begins {m} rows late: at the end of each tile of {n} keys, not at its start",
     lambda m, n, at: at.i >= (at.j // n * n + n - 1) // m * m),
    ("tile/last-rows", "M2", "ends with the rows that see the first key of each tile of {n}",
     lambda m, n, at: at.i // m <= (at.of_first_key(at.end_row, n) - 1) // m),
    ("tile/first-keys", "M2", "begins with the keys that the last row of each tile of {m} sees",
     lambda m, n, at: at.j // n >= at.of_row(at.first_key, m, last=True) // n),
    ("tile/last-keys", "M2", "ends with the keys that the first row of each tile of {m} sees",
     lambda m, n, at: at.j // n <= (at.of_row(at.end_key, m, last=False) - 1) // n),
    ("tile/last-keys", "M2", "ends one tile of {n} keys before the last that each tile of {m} rows sees",
     lambda m, n, at: at.j // n * n < at.of_row(at.end_key, m, last=True) - n),
    ("accumulation", "ACC", f"keeps the last tile of {{n}} keys that each tile of {{m}} rows sees: {OVERWRITTEN}",
     lambda m, n, at: at.j // n == (at.of_row(at.end_key, m, last=True) - 1) // n),
    ("tile/keys-step", "M2", "steps over the keys by {m}, the tile of rows, where tiles of keys hold {n}",
     lambda m, n, at: at.j % m < n),
    ("tile/rows-step", "M2", "steps over the rows by {n}, the tile of keys, where tiles of rows hold {m}",
     lambda m, n, at: at.i % n < m),
)  # fmt: skip


def read_beyond_the_end(seen: Observed) -> Iterator[Hypothesis]:
    """Rows beyond the end that reach dK and dV, and keys beyond it that reach dQ; some operands are masked to 0."""
    case, x = seen.case, seen.x
    others = (x.bias, x.mask, x.keep, x.seqlens, x.cu_seqlens_q, x.alibi, x.softcap, x.tau)
    if any(other is not None for other in others):
        return
    for size in sizes_of(case):
        rows, keys = -case.seqlen_q % size, -case.seqlen_k % size
        beyond = f"beyond the last one, up to a whole tile of {size},"
        for read in (("q", "do", "lse", "delta"), ("q", "do"), ("q",)) if rows else ():
            summary = f"rows {beyond} are read from the next head and added to dK and dV"
            fix = "mask the rows by the length: offs_m < n_ctx"
            yield making("tail/q", "M3", summary, _with_rows(seen, rows, read), fix, tensor="q")
        for read in (("k", "v"), ("k",)) if keys else ():
            summary = f"keys {beyond} are read from the next head and added to dQ"
            fix = "mask the keys by the length: offs_n < n_ctx"
            yield making("tail/k", "M3", summary, {"dQ": _with_keys(seen, keys, read)}, fix, tensor="k")
        if keys:
            summary = f"keys {beyond} count with a score of 0"
            fix = "mask the scores by the length: tl.where(offs_n < n_ctx, s, -inf)"
            yield making("tail/scores", "M3", summary, {"LSE": partial(_counting, keys)}, fix, ("LSE", "P", "O"))


def _behind(seen: Observed, name: str, count: int, read: Sequence[str]) -> Tensor:
    """[B, H, count, ...] what lies behind the last row of each head; 0 where it is masked."""
    tensor = readable(seen)[name]
    shape = (*tensor.shape[:2], count, *tensor.shape[3:])
    if name not in read:
        return tensor.new_zeros(shape).double()
    return (
        found_at(tensor, offsets(shape, tensor.stride()) + tensor.shape[2] * tensor.stride(2)).double().nan_to_num(0.0)
    )


def _with_rows(seen: Observed, count: int, read: Sequence[str]) -> dict[str, Hook]:
    """dK and dV with rows beyond the end added."""
    q, do, lse, delta = (_behind(seen, name, count, read) for name in ("q", "do", "lse", "delta"))

    def p(t: TileScope) -> Tensor:
        """P of those rows, which see what a causal mask and a window let them."""
        sees = _sees(t.x, slice(t.x.n_query, t.x.n_query + count), slice(0, t.x.n_key))
        return (t.x.scale * q[t.place] @ t.k.mT - lse[t.place][..., None]).exp() * sees

    def dk(value: Tensor, t: TileScope) -> Tensor:
        ds = p(t) * (do[t.place] @ t.v.mT - delta[t.place][..., None])
        return value + t.x.scale * ds.mT @ q[t.place]

    return {"dK": dk, "dV": lambda v, t: v + p(t).mT @ do[t.place]}


def _with_keys(seen: Observed, count: int, read: Sequence[str]) -> Hook:
    """dQ with keys beyond the end added."""
    behind = [_behind(seen, name, count, read) for name in ("k", "v")]

    def dq(value: Tensor, t: TileScope) -> Tensor:
        k, v = (of[t.tile.batch, t.x.kv_heads(t.tile)] for of in behind)
        sees = _sees(t.x, t.tile.rows, slice(t.x.n_key, t.x.n_key + count))
        p = (t.x.scale * t.q @ k.mT - t.LSE[..., None]).exp() * sees
        return value + t.x.scale * (p * (t.do @ v.mT - t.delta[..., None])) @ k

    return dq


def _counting(count: int, value: Tensor, t: TileScope) -> Tensor:
    """LSE with keys beyond the end, which a load pads with 0 as it does their values."""
    sees = _sees(t.x, t.tile.rows, slice(t.x.n_key, t.x.n_key + count))
    return value.logaddexp(sees.sum(-1).to(value).log())


def _sees(x: Attention, rows: slice, keys: slice) -> Tensor:
    """[rows, keys] bool, by causal and the window alone."""
    i = torch.arange(rows.start, rows.stop, device=x.q.device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=x.q.device)[None, :]
    i = i + (x.n_key - x.n_query if x.align == "bottom-right" else 0)
    left, right = _reach(x, x.n_query + x.n_key + keys.stop + rows.stop)
    return (j >= i - left) & (j <= i + right)


def _reach(x: Attention, everything: int) -> tuple[int, int]:
    """How many keys to the left and to the right of its own a row sees by causal and the window."""
    left, right = x.window or (-1, -1)
    right = 0 if x.causal else right
    return everything if left < 0 else left, everything if right < 0 else right
