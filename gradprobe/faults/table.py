"""Every fault that a reference can predict, the likeliest first: of two that fit alike, the first is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, groupby, product
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, PRODUCTS, names, reached, steps, title
from ..model.mechanisms import gathered
from ..model.number import listed
from ..reference import Attention, Tile, tiles
from . import fault_rows, index
from .hypothesis import SCORED, Hypothesis, Observed, entered
from .row_text import FormulaRow, filled, rows_of
from .variant import TileScope, compiled

# By the first word of a fault; others are of the algebra.
_CLASSES = {"mask": "M1", "dropout": "DRP", "dead": "N1", "precision": "PREC"}
_CLASSES |= {"tile": "M2", "tail": "M3", "accumulation": "ACC"}
_READ = ("q", "k", "v", "do", "scale", "bias", "alibi", "tau", "sinks", "softcap")
# Of tiles, beside those of the case.
_SIZES = (16, 32, 64, 128)
_DTYPES = {
    "float32": ("bfloat16", "float16", "tf32", "bfloat16, cut off"),
    "float16": ("bfloat16",),
    "bfloat16": ("float16",),
}
_HOLES = ("m", "n", "size", "tile", "member", "dtype")
# A factor nearer to 1 is none; one of less leaves nothing of a result.
_NEAR, _LEAST = 1e-3, 1e-6
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8

# --- rows of formulas


def _of_rows(text: str, seen: Observed) -> Iterator[Hypothesis]:
    """The hypotheses of rows about one run, by size of tile; of those that hide the same in tiles the first alone."""
    problem, family, places = _problem(seen), seen.case.family, _places(seen.x)
    plain, met = _shown(places, "valid"), set[tuple[bytes, frozenset[str]]]()
    sums = [name for name in (*seen.own, *seen.wrong_names) if name in ("dQ", "dK", "dV", "O", "LSE", "delta")]
    due = {row.name: f"{row.name} = {step.formula}" for row, step in steps(family)}
    common = {"first": [*sums, seen.own[0]][0], "due": due["delta"]}
    for holes, rows in groupby(rows_of(text), key=_holes):
        possible = list[tuple[FormulaRow, dict[str, Any]]]()
        for row in rows:
            for words in row.each:
                if eval(compiled(filled(row.needs, words)), {}, problem):
                    value = {"value": eval(compiled(words["factor"]), {}, problem)} if "factor" in words else {}
                    possible.append((row, {**words, **value}))
        for way, (row, filling) in product(_ways(holes, seen.case), possible):
            found = _hypothesis(row, {**filling, **way, **common}, family)
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
    return tuple(name for name in _HOLES if f"{{{name}}}" in text)


def _hypothesis(row: FormulaRow, words: Mapping[str, Any], family: str) -> Hypothesis:
    """A row with its holes filled."""
    fault, kind = filled(row.fault, words), row.fault.partition("/")[0]
    titles = {hole: title(str(word)) for hole, word in words.items()}
    made = dict[str, str]()
    for formula in row.formulas:
        made |= _expanded(*filled(formula, words).split(" = ", 1))
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


def _expanded(name: str, made: str) -> dict[str, str]:
    """What a formula makes; what multiplies V, and the products of a matrix, are several."""
    if name == "weights":
        return {of: f"product('{of}', {made})" for of in ("O", "dV")}
    if name in ("of_P", "of_dS"):
        matrix = name.removeprefix("of_")
        other = f"rounded({'pe' if matrix == 'P' else matrix}, '{made}')"
        return {of: f"product('{of}', {other})" for of, row in PRODUCTS.items() if row.matrix == matrix}
    return {name: made}


def _problem(seen: Observed) -> dict[str, Any]:
    """What a row may ask of a run."""
    x, case, met = seen.x, seen.case, set[tuple[str, float]]()

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
        "D": case.head_dim,
        "group": case.heads // case.kv_heads,
        "p": case.dropout,
        "x": x,
        "seen": seen,
        "case": case,
        "is_new": is_new,
        "lazy": x.family == "lazy",
        "has_window": x.family == "lazy" and x.bias is not None and x.bias.shape[1] > 1,
        "is_bare": all(other is None for other in others),
        "dead": not all(bool(x.valid(tile).any(-1).all()) for tile in tiles(x)),
    }


def _ways(holes: Sequence[str], case: Case) -> Iterator[dict[str, Any]]:
    """What fills holes: the sizes of the case first, then square tiles."""
    longest, own = max(case.seqlen_q, case.seqlen_k), (case.block_m, case.block_n)
    sizes: list[int] = [*own, *_SIZES]
    pairs = [(0, 0)]
    if "m" in holes:
        pairs = [own, *((n, n) for n in _SIZES), *product(_SIZES, _SIZES)]
    elif "n" in holes:
        pairs = [(0, n) for n in (*sizes, 256) if n < longest]
    elif "size" in holes:
        pairs = [(0, n) for n in (longest, case.block_m, 8, *_SIZES) if n <= longest]
    elif "member" in holes:
        pairs = [(0, n) for n in range(case.heads // case.kv_heads)]
    elif "tile" in holes:
        pairs = [(0, n) for n in sizes if case.seqlen_q % n or case.seqlen_k % n]
    for dtype in _DTYPES[case.dtype] if "dtype" in holes else [""]:
        for m, n in dict.fromkeys(pairs):
            yield {"m": m, "dtype": dtype, **dict.fromkeys(("n", "size", "tile", "member"), n)}


# --- what the numbers that came say themselves


def _zeros(seen: Observed) -> Iterator[Hypothesis]:
    """Gradients that are 0 throughout, together where there are several: one kernel may have left them."""
    found = [name for name in GRADIENT_OF.values() if name in seen.own and not bool(seen.actual[name].any())]
    if found:
        are = "are" if len(found) > 1 else "is"
        summary = f"{listed(found)} {are} 0 throughout: nothing was stored there, or None was returned"
        yield Hypothesis(f"zero/{found[0]}", "H1", summary, {name: f"{name} * 0" for name in found}, is_plain=True)


def _exchanged(seen: Observed) -> Iterator[Hypothesis]:
    """One gradient in another's place, too or instead."""
    for pair in combinations([name for name in ("dQ", "dK", "dV") if name in seen.actual], 2):
        if seen.actual[pair[0]].shape != seen.actual[pair[1]].shape:
            continue
        # Only the one that is wrong stands where the other belongs.
        here, of = pair if all(map(seen.wrong, pair)) else sorted(pair, key=seen.wrong, reverse=True)
        places, fault, summary = {here: of}, f"twice/{of}", f"{of} stands in the place of {here} too"
        if seen.wrong(of):
            places[of], fault = here, f"swap/{here}-{of}"
            summary = f"{here} and {of} have changed places"
        fix, finish = "return each gradient in its own place", partial(_placed, places)
        yield Hypothesis(fault, "H1", summary, {}, fix, tuple(places), finish=finish)


def _placed(places: Mapping[str, str], values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {here: values[of] for here, of in places.items()} if {*places.values()} <= values.keys() else {}


def _measured(seen: Observed) -> Iterator[Hypothesis]:
    """What is wrong by itself times the factor that it shows itself, by least squares."""
    for step in filter(seen.actual.__contains__, seen.own):
        wrong = ~seen.right[step] & seen.actual[step].isfinite()
        actual, expected = seen.actual[step][wrong], seen.expected[step][wrong]
        squares = float((expected**2).sum())
        factor = float((actual * expected).sum()) / squares if squares else 0.0
        if len(actual) >= _FEWEST and abs(factor) > _LEAST and abs(factor - 1) > _NEAR:
            summary = f"{step} is off by the factor {factor:.5g} throughout"
            yield Hypothesis(f"factor/{step}", "A", summary, {step: f"{step} * {factor!r}"})


def _of_python(seen: Observed) -> Iterator[Hypothesis]:
    """What people write in plain Python, in square problems."""
    if not seen.launches and seen.is_square:
        from .python_rows import PYTHON  # which no kernel asks for

        yield from _of_rows(PYTHON, seen)


_KINDS: tuple[tuple[str, Callable[[Observed], Iterable[Hypothesis]]], ...] = (
    ("faults/python", _of_python),
    ("faults/factors", _zeros),
    ("faults/index", index.elsewhere),
    ("faults/formulas", lambda seen: _of_rows(fault_rows.FORMULAS, seen)),
    ("faults/operands", lambda seen: _of_rows(fault_rows.OPERANDS, seen)),
    ("faults/factors", _exchanged),
    ("faults/factors", lambda seen: _of_rows(fault_rows.FACTORS, seen)),
    ("faults/factors", _measured),
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
