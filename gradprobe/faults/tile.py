"""M2, M3, ACC: tiles of rows or keys that a sum leaves out, or that alone are left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller

from torch import Tensor

from ..reference import Attention, Tile, live_length
from .hypothesis import EVERYTHING, Hypothesis, Observed

_SIZES = (16, 32, 64, 128, 256)
_SUMS = ("dQ", "dK", "dV", "O", "LSE", "delta")


@dataclass(frozen=True)
class Positions:
    """Where the entries of a tile of scores lie; each broadcasts to [m, N]."""

    i: Tensor
    j: Tensor
    n_rows: int
    """Live rows of the batch."""
    n_keys: int
    first_key: Tensor
    """[m, 1] and [m, 1]: the keys that a row may see, from and to (exclusive), by causal and the window."""
    end_key: Tensor
    first_row: Tensor
    """[1, N] and [1, N]: the rows that may see a key."""
    end_row: Tensor


Keep = Callable[[Positions], Tensor]


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Tiles of the usual sizes left out at either end, and sums that keep one tile alone.

    Each once: in a short problem many sizes of tiles leave the same, and some leave everything.
    """
    shown = _shown(seen)
    met = {_kept_entries(shown, lambda at: at.j >= 0)}
    for name, fault_class, words, keep in _every(seen):
        left = _kept_entries(shown, keep)
        if left not in met:
            met.add(left)
            yield _hypothesis(seen, name, fault_class, words, keep)


def _shown(seen: Observed) -> list[tuple[Tensor, Positions]]:
    """What causal and a window show, and where, batch by batch where these differ."""
    x = replace(seen.x, mask=None, bias=None)
    batches = range(x.n_batch if x.seqlens is not None else 1)
    every = [Tile(batch, slice(0, 1), slice(0, x.n_query)) for batch in batches]
    return [(x.valid(tile)[0], positions(x, tile)) for tile in every]


def _kept_entries(shown: Sequence[tuple[Tensor, Positions]], keep: Keep) -> bytes:
    """Which entries are kept of those that are shown."""
    return b"".join((valid & keep(at)).cpu().numpy().tobytes() for valid, at in shown)


def _every(seen: Observed) -> Iterator[tuple[str, str, str, Keep]]:
    case = seen.case
    sizes = dict.fromkeys((case.block_m, case.block_n, *_SIZES))
    most = max(case.seqlen_q, case.seqlen_k)
    for size in (size for size in sizes if size < most):
        yield from _ways(size)
    for rows in dict.fromkeys((case.block_m, *_SIZES[:3])):
        for keys in dict.fromkeys((case.block_n, *_SIZES[:3])):
            yield from _of_pairs(rows, keys)


def _hypothesis(seen: Observed, name: str, fault_class: str, words: str, keep: Keep) -> Hypothesis:
    kind, _, what = name.partition("/")
    first = next((own for own in (*seen.own, *seen.wrong_names) if own in _SUMS), seen.own[0])
    fault = f"{kind}/{first}-{what}" if what else f"{kind}/{first}"
    alter = methodcaller("seeing", lambda valid, x, tile: valid & keep(positions(x, tile)))
    return Hypothesis(fault, fault_class, words.format(first), alter, EVERYTHING)


def positions(x: Attention, tile: Tile) -> Positions:
    """The places of a tile's entries, and how far rows and keys reach."""
    i, j = x.positions(tile)
    (left, right), reach = x.window or (-1, -1), x.n_query + x.n_key
    right = 0 if x.causal else right
    left, right = reach if left < 0 else left, reach if right < 0 else right
    shift = 0 if x.cu_seqlens_q is not None else (x.n_key - x.n_query if x.align == "bottom-right" else 0)
    rows = live_length(x, tile.batch)
    keys = x.n_key if x.seqlens is None else rows
    of_row = (i + shift - left).clamp(0, keys), (i + shift + right + 1).clamp(0, keys)
    of_key = (j - shift - right).clamp(0, rows), (j - shift + left + 1).clamp(0, rows)
    return Positions(i, j, rows, keys, *of_row, *of_key)


# What is said of a sum that keeps the last of what is added to it.
OVERWRITTEN = "it is overwritten, not added to"


def _ways(n: int) -> Iterator[tuple[str, str, str, Keep]]:
    """What tiles of n rows or keys lose or keep, the likeliest first."""
    yield from (
        ("tile/last-rows", "M3", f"{{}} leaves out the rows beyond the last whole tile of {n}",
         lambda at: at.i < at.n_rows // n * n),
        ("tile/last-keys", "M3", f"{{}} leaves out the keys beyond the last whole tile of {n}",
         lambda at: at.j < at.n_keys // n * n),
        ("accumulation", "ACC", f"{{}} keeps the last tile of {n} rows alone: {OVERWRITTEN}",
         lambda at: at.i >= (at.n_rows - 1) // n * n),
        ("accumulation", "ACC", f"{{}} keeps the last tile of {n} keys alone: {OVERWRITTEN}",
         lambda at: at.j >= (at.n_keys - 1) // n * n),
        ("accumulation", "ACC", f"{{}} keeps the last tile of {n} keys that a row sees alone: {OVERWRITTEN}",
         lambda at: at.j // n == (at.end_key - 1) // n),
        ("tile/last-rows", "M2", f"{{}} leaves out the last tile of {n} rows",
         lambda at: at.i < (at.n_rows - 1) // n * n),
        ("tile/last-keys", "M2", f"{{}} leaves out the last tile of {n} keys",
         lambda at: at.j < (at.n_keys - 1) // n * n),
        ("tile/last-rows", "M2", f"{{}} ends one tile of {n} rows early", lambda at: at.i // n * n < at.n_rows - n),
        ("tile/last-keys", "M2", f"{{}} ends one tile of {n} keys early", lambda at: at.j // n * n < at.n_keys - n),
        ("tile/first-rows", "M2", f"{{}} leaves out the first {n} rows", lambda at: at.i >= n),
        ("tile/first-keys", "M2", f"{{}} leaves out the first {n} keys", lambda at: at.j >= n),
        ("tile/rows-beyond", "M2", f"{{}} leaves out the rows beyond {n}", lambda at: at.i < n),
        ("tile/keys-beyond", "M2", f"{{}} leaves out the keys beyond {n}", lambda at: at.j < n),
        ("tile/last-keys", "M2", f"{{}} leaves out the last tile of {n} keys that a row may see",
         lambda at: at.j < at.end_key // n * n),
        ("tile/first-keys", "M2", f"{{}} leaves out the first tile of {n} keys that a row may see",
         lambda at: at.j >= at.first_key // n * n + n),
        ("tile/rows-every", "M2", f"{{}} is made of every {n}th row alone", lambda at: at.i % n == 0),
        ("tile/keys-every", "M2", f"{{}} is made of every {n}th key alone", lambda at: at.j % n == 0),
        ("accumulation", "ACC", f"{{}} keeps the first tile of {n} rows alone", lambda at: at.i < n),
        ("accumulation", "ACC", f"{{}} keeps the first tile of {n} keys alone", lambda at: at.j < n),
    )  # fmt: skip


def _of_pairs(rows: int, keys: int) -> Iterator[tuple[str, str, str, Keep]]:
    """What tiles of so many rows and keys leave out or keep together."""
    m, n = rows, keys
    yield from (
        ("tile/first-rows", "M2", f"{{}} skips the first tile of {m} rows that sees each tile of {n} keys",
         lambda at: at.i // m > _of_first_key(at.first_row, at, n) // m),
        ("tile/first-rows", "M2", f"{{}} begins {m} rows late: at the end of each tile of {n} keys, not at its start",
         lambda at: at.i >= (at.j // n * n + n - 1) // m * m),
        ("tile/last-rows", "M2", f"{{}} ends with the rows that see the first key of each tile of {n}",
         lambda at: at.i // m <= (_of_first_key(at.end_row, at, n) - 1) // m),
        ("tile/first-keys", "M2", f"{{}} begins with the keys that the last row of each tile of {m} sees",
         lambda at: at.j // n >= _of_last_row(at.first_key, at, m) // n),
        ("tile/last-keys", "M2", f"{{}} ends with the keys that the first row of each tile of {m} sees",
         lambda at: at.j // n <= (at.end_key[(at.i // m * m - at.i[0]).clamp(min=0)[:, 0]] - 1) // n),
        ("tile/last-keys", "M2", f"{{}} ends one tile of {n} keys before the last that each tile of {m} rows sees",
         lambda at: at.j // n * n < _of_last_row(at.end_key, at, m) - n),
        ("accumulation", "ACC",
         f"{{}} keeps the last tile of {n} keys that each tile of {m} rows sees: {OVERWRITTEN}",
         lambda at: at.j // n == (_of_last_row(at.end_key, at, m) - 1) // n),
    )  # fmt: skip
    if m > n:
        words = f"{{}} steps over the keys by {m}, the tile of rows, where tiles of keys hold {n}"
        yield "tile/keys-step", "M2", words, lambda at: at.j % m < n
    if n > m:
        words = f"{{}} steps over the rows by {n}, the tile of keys, where tiles of rows hold {m}"
        yield "tile/rows-step", "M2", words, lambda at: at.i % n < m


def _of_first_key(bound: Tensor, at: Positions, n: int) -> Tensor:
    """Each key's bound on rows, taken at the first key of its tile."""
    return bound.expand_as(at.j)[0][(at.j // n * n)[0]][None]


def _of_last_row(bound: Tensor, at: Positions, m: int) -> Tensor:
    """Each row's bound on keys, taken at the last row of its tile."""
    return bound[(at.i // m * m + m - 1 - at.i[0]).clamp(max=len(at.i) - 1)[:, 0]]
