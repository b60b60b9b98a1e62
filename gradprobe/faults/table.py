"""Every fault that a reference can predict, the likeliest first: of two that fit alike, the first is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from ..model.case import Case
from ..model.intermediates import reached
from ..model.mechanisms import gathered
from ..reference import Attention, Tile, tiles
from . import fault_rows, index, store
from .factors import factors
from .hypothesis import SIZES, Hypothesis, Observed, entered
from .variant import TileScope, compiled

_DTYPES = {"float32": ("bfloat16", "float16", "tf32", "bfloat16, cut off"), "float16": ("bfloat16",)}
_DTYPES |= {"bfloat16": ("float16",)}


def of_rows(rows: str, seen: Observed) -> Iterator[Hypothesis]:
    """The hypotheses of rows about one run, by size of tile; of those that hide the same in tiles the first alone."""
    sums = ("dQ", "dK", "dV", "O", "LSE", "delta")
    first = next((own for own in (*seen.own, *seen.wrong_names) if own in sums), seen.own[0])
    problem = dict(vars(seen.x), x=seen.x, seen=seen, case=seen.case, lazy=seen.x.family == "lazy")
    problem["dead"] = not all(bool(seen.x.valid(tile).any(-1).all()) for tile in tiles(seen.x))
    shown = _Shown(seen.x)
    for held, group in groupby(getattr(fault_rows, rows), key=_placeholders):
        possible = [row for row in group if eval(compiled(row.needs), {}, problem)]
        for way in _ways(held, seen.case):
            for row in possible:
                found = _filled(row, way | {"first": first}, seen.case.family)
                if not held or found.sees == "valid" or shown.is_new(found):
                    yield found


def _placeholders(row: Hypothesis) -> tuple[str, ...]:
    texts = " ".join((row.summary, row.sees, row.dtype, *map(str, row.made.values())))
    return tuple(name for name in ("m", "n", "size", "dtype") if f"{{{name}}}" in texts)


def _ways(held: Sequence[str], case: Case) -> Iterator[dict[str, Any]]:
    """What placeholders stand for: the sizes of the case first, then square tiles."""
    longest = max(case.seqlen_q, case.seqlen_k)
    dtypes = _DTYPES[case.dtype] if "dtype" in held else [""]
    pairs: list[tuple[int, int]] = [(0, 0)]
    if "m" in held:
        pairs = sorted(((m, n) for m in SIZES for n in SIZES), key=lambda pair: pair[0] != pair[1])
        pairs.insert(0, (case.block_m, case.block_n))
    elif "n" in held:
        pairs = [(0, n) for n in (case.block_m, case.block_n, *SIZES, 256) if n < longest]
    elif "size" in held:
        pairs = [(0, n) for n in (case.block_m, 8, *SIZES) if n < longest]
    for dtype in dtypes:
        for m, n in dict.fromkeys(pairs):
            yield {"m": m, "n": n, "size": n, "dtype": dtype}


def _filled(row: Hypothesis, way: Mapping[str, Any], family: str) -> Hypothesis:
    """A row about one size or dtype."""
    made = {name: str(formula).format(**way) for name, formula in row.made.items()}
    reads = {name: str(value).format(**way) for name, value in row.reads.items()}
    wrong = row.wrong
    if row.dtype:
        wrong = frozenset(made).union(*(entered(name, family) for name in reads))
    return replace(
        row, fault=row.fault.format(**way), summary=row.summary.format(**way), made=made, reads=reads, wrong=wrong,
        sees=row.sees.format(**way), dtype=row.dtype.format(**way).partition(",")[0], fix=row.fix.format(**way),
    )  # fmt: skip


class _Shown:
    """What rules hide of a problem; in a short one many sizes of tiles hide the same, and some hide nothing."""

    def __init__(self, x: Attention) -> None:
        x = replace(x, mask=None, bias=x.bias if x.family == "lazy" else None)
        batches = range(x.n_batch if x.seqlens is not None else 1)
        self._places = [TileScope(x, Tile(batch, slice(0, 1), slice(0, x.n_query))) for batch in batches]
        self._plain, self._met = self._of("valid"), set[tuple[bytes, frozenset[str]]]()

    def _of(self, sees: str) -> bytes:
        return b"".join(at.value(sees)[0].cpu().numpy().tobytes() for at in self._places)

    def is_new(self, found: Hypothesis) -> bool:
        """Whether a rule hides something, and no other that makes the same wrong hides the same."""
        shown = self._of(found.sees)
        is_new = shown != self._plain and (shown, found.changes) not in self._met
        self._met.add((shown, found.changes))
        return is_new


_KINDS: tuple[tuple[str, Callable[[Observed], Iterable[Hypothesis]]], ...] = (
    ("faults/store", store.zeros),
    ("faults/index", index.elsewhere),
    ("faults/formulas", partial(of_rows, "FORMULAS")),
    ("faults/store", store.shares),
    ("faults/operands", partial(of_rows, "OPERANDS")),
    ("faults/store", store.exchanged),
    ("faults/factors", factors),
    ("faults/sums", partial(of_rows, "SUMS")),
    ("faults/index", index.read_beyond_the_end),
)


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """All that may have made a run wrong by itself."""
    for name, kind in _KINDS:
        yield from gathered(name, partial(_showing, kind), seen, credit=lambda found: ("fault", found.fault))


def _showing(kind: Callable[[Observed], Iterable[Hypothesis]], seen: Observed) -> Iterator[Hypothesis]:
    """Those that may show there.

    A kernel computes P, dP and dS anew and may hand on their errors where what another one exposes is right.
    """
    for found in kind(seen):
        if not set(reached(found.changes, seen.case.family)).isdisjoint(seen.own):
            yield found
