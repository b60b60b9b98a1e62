"""Every fault that a reference can predict, the likeliest first: of two that fit alike, the first is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from typing import Any

from ..model.case import Case
from ..model.intermediates import PRODUCTS, names, reached, steps, title
from ..model.mechanisms import gathered
from ..reference import Attention, Tile, tiles
from . import factors, fault_rows, index
from .hypothesis import SCORED, Hypothesis, Observed, entered
from .row_text import FormulaRow, filled, rows_of
from .variant import TileScope, compiled

_CLASSES = {
    "mask": "M1",
    "dropout": "DRP",
    "dead": "N1",
    "precision": "PREC",
    "tile": "M2",
    "tail": "M3",
    "accumulation": "ACC",
}
"""By the first word of a fault; others are of the algebra."""
_INPUTS = ("q", "k", "v", "do")
_READ = (*_INPUTS, "scale", "bias", "alibi", "tau", "sinks", "softcap")
_SIZES = (16, 32, 64, 128)
"""Of tiles, beside those of the case."""
_DTYPES = {
    "float32": ("bfloat16", "float16", "tf32", "bfloat16, cut off"),
    "float16": ("bfloat16",),
    "bfloat16": ("float16",),
}


def _of_rows(text: str, seen: Observed) -> Iterator[Hypothesis]:
    """The hypotheses of rows about one run, by size of tile; of those that hide the same in tiles the first alone."""
    problem, family, places = _problem(seen), seen.case.family, _places(seen.x)
    plain, met = _shown(places, "valid"), set[tuple[bytes, frozenset[str]]]()
    sums = [name for name in (*seen.own, *seen.wrong_names) if name in ("dQ", "dK", "dV", "O", "LSE", "delta")]
    due = {row.name: f"{row.name} = {step.formula}" for row, step in steps(family)}
    common = {"first": [*sums, seen.own[0]][0], "due": due["delta"]}
    for holes, group in groupby(rows_of(text), key=_holes):
        possible = [(row, {**words}) for row in group for words in row.each]
        possible = [of for of in possible if eval(compiled(filled(of[0].needs, of[1])), {}, problem)]
        for _, words in possible:
            if "factor" in words:
                words["value"] = eval(compiled(words["factor"]), {}, problem)
        for way, (row, words) in product(_ways(holes, seen.case), possible):
            found = _hypothesis(row, {**words, **way, **common}, family)
            if holes and found.sees != "valid":  # in a short problem many sizes hide the same, and some nothing
                key = _shown(places, found.sees), found.changes
                if key[0] == plain or key in met:
                    continue
                met.add(key)
            yield found


def _places(x: Attention) -> list[TileScope]:
    """A head of each batch that rules may hide other keys of."""
    x = replace(x, mask=None, bias=x.bias if x.family == "lazy" else None)
    batches = range(x.n_batch if x.seqlens is not None else 1)
    return [TileScope(x, Tile(batch, slice(0, 1), slice(0, x.n_query))) for batch in batches]


def _shown(places: Sequence[TileScope], sees: str) -> bytes:
    return b"".join(at.value(sees)[0].cpu().numpy().tobytes() for at in places)


def _holes(row: FormulaRow) -> tuple[str, ...]:
    text = " ".join((row.summary, *row.formulas))
    return tuple(name for name in ("m", "n", "size", "tile", "member", "dtype") if f"{{{name}}}" in text)


def _hypothesis(row: FormulaRow, words: Mapping[str, Any], family: str) -> Hypothesis:
    """A row with its holes filled."""
    fault, kind = filled(row.fault, words), row.fault.partition("/")[0]
    titles = {hole: title(str(word)) for hole, word in words.items()}
    made = dict[str, str]()
    for formula in row.formulas:
        made |= _expanded(filled(formula, words))
    sees = made.pop("sees", "valid")
    if kind in ("tile", "accumulation") and sees != "valid":
        sees = f"valid & ({sees})"
    reads = {name: made.pop(name) for name in _READ if name in made}
    wrong: Collection[str] = names() if row.wrong == "*" else row.wrong.split()
    if kind == "precision":
        wrong = {*made}.union(*(entered(name, family) for name in reads))
    elif not wrong and (reads or sees != "valid"):
        wrong = SCORED
    return Hypothesis(
        fault,
        _CLASSES.get(kind, "A"),
        filled(row.summary, titles),
        made,
        filled(row.fix, titles),
        wrong,
        sees,
        reads,
        dtype=str(words["dtype"]).partition(",")[0],
        not_finite=fault == "dead/nan",
        is_plain="seen.own ==" in row.needs,
    )


def _expanded(formula: str) -> dict[str, str]:
    """What a formula makes; what multiplies V, every input, and the products of a matrix are several."""
    name, made = formula.split(" = ", 1)
    if name == "weights":
        return {of: f"product('{of}', {made})" for of in ("O", "dV")}
    if name == "inputs":
        return {of: f"rounded({of}, '{made}')" for of in _INPUTS}
    if name in ("of_P", "of_dS"):
        matrix = name.removeprefix("of_")
        other = f"rounded({'pe' if matrix == 'P' else matrix}, '{made}')"
        return {of: f"product('{of}', {other})" for of, row in PRODUCTS.items() if row.matrix == matrix}
    return {name: made}


def _problem(seen: Observed) -> dict[str, Any]:
    """What a row may ask of a run."""
    x, lazy, met = seen.x, seen.x.family == "lazy", set[tuple[str, float]]()

    def is_new(what: str, factor: float) -> bool:
        key = what, round(factor, 9)
        is_met = factor == 1 or key in met
        met.add(key)
        return not is_met

    others = (x.bias, x.mask, x.keep, x.seqlens, x.cu_seqlens_q, x.alibi, x.softcap, x.tau)
    return {
        **vars(x),
        "ln2": math.log(2),
        "log2e": 1 / math.log(2),
        "D": seen.case.head_dim,
        "group": seen.case.heads // seen.case.kv_heads,
        "p": seen.case.dropout,
        "x": x,
        "seen": seen,
        "case": seen.case,
        "is_new": is_new,
        "lazy": lazy,
        "has_window": lazy and x.bias is not None and x.bias.shape[1] > 1,
        "is_bare": all(other is None for other in others),
        "dead": not all(bool(x.valid(tile).any(-1).all()) for tile in tiles(x)),
    }


def _ways(holes: Sequence[str], case: Case) -> Iterator[dict[str, Any]]:
    """What fills holes: the sizes of the case first, then square tiles."""
    longest, own = max(case.seqlen_q, case.seqlen_k), (case.block_m, case.block_n)
    pairs = [(0, n) for n in (*own, *_SIZES)]
    if "m" in holes:
        pairs = [own, *((n, n) for n in _SIZES), *product(_SIZES, _SIZES)]
    elif "n" in holes:
        pairs = [pair for pair in (*pairs, (0, 256)) if pair[1] < longest]
    elif "size" in holes:
        pairs = [(0, n) for n in (longest, case.block_m, 8, *_SIZES) if n <= longest]
    elif "member" in holes:
        pairs = [(0, n) for n in range(case.heads // case.kv_heads)]
    elif "tile" in holes:
        pairs = [(0, n) for _, n in pairs if case.seqlen_q % n or case.seqlen_k % n]
    else:
        pairs = [(0, 0)]
    for dtype in _DTYPES[case.dtype] if "dtype" in holes else [""]:
        for m, n in dict.fromkeys(pairs):
            yield {"m": m, "dtype": dtype, **dict.fromkeys(("n", "size", "tile", "member"), n)}


_KINDS: tuple[tuple[str, Callable[[Observed], Iterable[Hypothesis]]], ...] = (
    ("faults/factors", factors.zeros),
    ("faults/index", index.elsewhere),
    ("faults/formulas", lambda seen: _of_rows(fault_rows.FORMULAS, seen)),
    ("faults/operands", lambda seen: _of_rows(fault_rows.OPERANDS, seen)),
    ("faults/factors", factors.exchanged),
    ("faults/factors", lambda seen: _of_rows(fault_rows.FACTORS, seen)),
    ("faults/factors", factors.measured),
    ("faults/sums", lambda seen: _of_rows(fault_rows.SUMS, seen)),
)


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """All that may have made a run wrong by itself, and that may show there.

    A kernel computes P, dP and dS anew and may hand on their errors where what another one exposes is right.
    """
    for name, kind in _KINDS:
        for found in gathered(name, kind, seen, credit=lambda found: ("fault", found.fault)):
            if not set(reached(found.changes, seen.case.family)).isdisjoint(seen.own):
                yield found
