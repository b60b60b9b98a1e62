"""Every fault that a reference can predict, the likeliest first."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby, product, starmap
from operator import attrgetter, or_
from typing import Any, NamedTuple

from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, names, reached, steps, title
from ..model.number import listed
from ..reference import Attention, Tile, tiles
from . import fault_rows, index
from .hypothesis import Hypothesis, WrongRun, entered
from .variant import TileScope, compiled

_SCORED = frozenset({"LSE", "P", "O", "dP", "dV", "delta"})
_SUMS = ("dQ", "dK", "dV", "O", "LSE", "delta")
_SIZES = (16, 32, 64, 128)
_DTYPES = {
    "float32": ("bfloat16", "float16", "tf32", "bfloat16, cut off"),
    "float16": ("bfloat16",),
    "bfloat16": ("float16",),
}
# A factor nearer to 1 is none; one of less leaves nothing of a result.
_NEAR, _LEAST = 1e-3, 1e-6
# Elements that a factor is measured by at least: one alone has a ratio of its own, whatever is wrong with it.
_FEWEST = 8

# --- rows, as they are written

_HOLES = ("m", "n", "size", "tile", "member", "dtype")


class FormulaRow(NamedTuple):
    fault: str
    summary: str
    fix: str
    formulas: list[tuple[str, str]]
    needs: str
    wrong: str
    factor: str
    holes: tuple[str, ...]  # that sizes and dtypes fill


@cache
def rows_of(text: str) -> list[FormulaRow]:
    """A row is its word and its sentence, and below them its formulas; {} is the name on the left.

    `or` begins another row with these and more, `if` a group and where its rows may be. Until the
    next one `fix` is the edit; `wrong` what is wrong by itself; `each` has a row for each of some
    words in its holes (a blank in a word is ~), and `times` for each of these with further words.
    """
    group, found = dict[str, Any](), list[tuple[list[str], dict[str, Any]]]()
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "if":
            group = {"needs": rest, "fix": "", "wrong": "", "each": [{}]}
        elif word == "each":
            group = group | {"each": list(_words_of(rest))}
        elif word == "times":
            pairs = product(group["each"], _words_of(rest))
            group = group | {"each": list(starmap(or_, pairs))}
        elif word in group:
            group = group | {word: rest}
        elif word == "or":
            found.append(([*found[-1][0]], group))
        elif word:
            found.append(([line], group))
        else:
            found[-1][0].append(rest.strip())
    rows = list[FormulaRow]()
    for lines, of in found:
        for words in of["each"]:
            rows.append(_row(lines, words, of))
    return rows


def _words_of(text: str) -> Iterator[dict[str, str]]:
    holes, words = text.split(" = ")
    for each in words.split(", "):
        spaced = each.replace(" ", "\t").replace("~", " ") if " " in holes else each
        yield dict(zip(holes.split(), spaced.split("\t"), strict=True))


def _row(lines: list[str], words: Mapping[str, Any], group: Mapping[str, Any]) -> FormulaRow:
    titles = {hole: title(word) for hole, word in words.items()}
    formulas = list[tuple[str, str]]()
    for line in lines[1:]:
        results, formula = _filled(line, words).split(" = ", 1)
        formulas += [(name, formula.replace("{}", name)) for name in results.split(", ")]
    fault, summary = lines[0].split(" | ")
    texts = _filled(fault, words), _filled(summary, titles), _filled(group["fix"], titles)
    holes = tuple(hole for hole in _HOLES if f"{{{hole}}}" in f"{summary} {formulas}")
    needs, factor = _filled(group["needs"], words), words.get("factor", "1")
    return FormulaRow(*texts, formulas, needs, group["wrong"], factor, holes)


def _filled(text: str, words: Mapping[str, Any]) -> str:
    for hole, word in words.items():
        text = text.replace(f"{{{hole}}}", str(word))
    return text


# --- rows of formulas


def _of_rows(name: str, seen: WrongRun) -> Iterator[Hypothesis]:
    problem, family, places = _problem(seen), seen.case.family, _places(seen.x)
    plain, met = _shown(places, "valid"), set[tuple[bytes, frozenset[str]]]()
    sums = filter(_SUMS.__contains__, (*seen.own, *seen.wrong_names))
    delta = next(step for row, step in steps(family) if row.name == "delta")
    common = {"first": next(sums, seen.own[0]), "due": f"delta = {delta.formula}"}
    for holes, rows in groupby(rows_of(getattr(fault_rows, name)), key=attrgetter("holes")):
        possible = [row for row in rows if eval(compiled(row.needs), {}, problem)]
        for way, row in product(_ways(holes, seen.case), possible):
            filling = {**way, **common, "value": eval(compiled(row.factor), {}, problem)}
            found = _hypothesis(row, filling, family)
            # In a short problem many sizes hide the same, and some nothing.
            if holes and found.sees != "valid":
                key = _shown(places, found.sees), found.changes
                if key[0] == plain or key in met:
                    continue
                met.add(key)
            yield found


def _places(x: Attention) -> list[TileScope]:
    x = replace(x, mask=None, bias=x.bias if x.family == "lazy" else None)
    batches = range(x.n_batch if x.seqlens is not None else 1)
    return [TileScope(x, Tile(batch, slice(0, 1), slice(0, x.n_query))) for batch in batches]


def _shown(places: Sequence[TileScope], sees: str) -> bytes:
    return b"".join(at.value(sees)[0].cpu().numpy().tobytes() for at in places)


def _hypothesis(row: FormulaRow, filling: Mapping[str, Any], family: str) -> Hypothesis:
    fault, summary, fix = (_filled(text, filling) for text in row[:3])
    made, reads, kind = dict[str, str](), dict[str, str](), fault.partition("/")[0]
    for name, formula in row.formulas:
        (made if name in ("sees", *names()) else reads)[name] = _filled(formula, filling)
    sees = made.pop("sees", "valid")
    wrong: Collection[str] = names() if row.wrong == "*" else row.wrong.split()
    if kind == "precision":
        wrong = {*made}.union(*(entered(name, family) for name in reads))
    elif not wrong and (reads or sees != "valid"):
        wrong = _SCORED
    is_plain = "seen.own ==" in row.needs
    return Hypothesis(fault, summary, made, fix, wrong, sees, reads, is_plain=is_plain)


def _problem(seen: WrongRun) -> dict[str, Any]:
    x, case, met = seen.x, seen.case, set[tuple[str, float]]()

    def is_new(what: str, factor: float) -> bool:
        key = what, round(factor, 9)
        is_met = factor == 1 or key in met
        met.add(key)
        return not is_met

    others = (x.bias, x.mask, x.keep, x.seqlens, x.cu_seqlens_q, x.alibi, x.softcap, x.tau)
    return {
        **vars(x), "x": x, "seen": seen, "case": case, "is_new": is_new, "ln2": math.log(2), "log2e": 1 / math.log(2),
        "D": case.head_dim, "group": case.heads // case.kv_heads, "p": case.dropout, "lazy": x.family == "lazy",
        "python": not seen.launches and x.n_query == x.n_key,
        "has_window": x.family == "lazy" and x.bias is not None and x.bias.shape[1] > 1,
        "shapes": {name: value.shape for name, value in seen.actual.items()},
        "is_bare": all(other is None for other in others),
        "dead": not all(bool(x.valid(tile).any(-1).all()) for tile in tiles(x)),
    }  # fmt: skip


def _ways(holes: Sequence[str], case: Case) -> Iterator[dict[str, Any]]:
    longest, own = max(case.seqlen_q, case.seqlen_k), (case.block_m, case.block_n)
    sizes, several = [*own, *_SIZES], [0]
    if "n" in holes:
        several = [n for n in (*sizes, 256) if n < longest]
    elif "size" in holes:
        several = [n for n in (longest, case.block_m, 8, *_SIZES) if n <= longest]
    elif "member" in holes:
        several = [*range(case.heads // case.kv_heads)]
    elif "tile" in holes:
        several = [n for n in sizes if case.seqlen_q % n or case.seqlen_k % n]
    pairs = [*product([0], several)]
    if "m" in holes:
        pairs = [own, *zip(_SIZES, _SIZES, strict=True), *product(_SIZES, _SIZES)]
    for dtype in _DTYPES[case.dtype] if "dtype" in holes else [""]:
        for m, n in dict.fromkeys(pairs):
            yield {"m": m, "dtype": dtype, **dict.fromkeys(("n", "size", "tile", "member"), n)}


# --- what the numbers that came say themselves


def _zeros(seen: WrongRun) -> Iterator[Hypothesis]:
    gradients = filter(seen.own.__contains__, GRADIENT_OF.values())
    made = {name: f"{name} * 0" for name in gradients if not bool(seen.actual[name].any())}
    if made:
        are = f"{listed([*made])} {'are' if len(made) > 1 else 'is'}"
        summary = f"{are} 0 throughout: nothing was stored there, or None was returned"
        yield Hypothesis(f"zero/{next(iter(made))}", summary, made, is_plain=True)


def _measured(seen: WrongRun) -> Iterator[Hypothesis]:
    for step in filter(seen.actual.__contains__, seen.own):
        wrong = ~seen.right[step] & seen.actual[step].isfinite()
        actual, expected = seen.actual[step][wrong], seen.expected[step][wrong]
        squares = float((expected**2).sum())
        factor = float((actual * expected).sum()) / squares if squares else 0.0
        if len(actual) >= _FEWEST and abs(factor) > _LEAST and abs(factor - 1) > _NEAR:
            summary = f"{step} is off by the factor {factor:.5g} throughout"
            yield Hypothesis(f"factor/{step}", summary, {step: f"{step} * {factor!r}"})


_KINDS: tuple[Callable[[WrongRun], Iterable[Hypothesis]], ...] = (
    partial(_of_rows, "PYTHON"),
    _zeros,
    index.elsewhere,
    partial(_of_rows, "FORMULAS"),
    partial(_of_rows, "OPERANDS"),
    partial(_of_rows, "FACTORS"),
    _measured,
    partial(_of_rows, "SUMS"),
)


def hypotheses(seen: WrongRun) -> Iterator[Hypothesis]:
    for kind in _KINDS:
        for found in kind(seen):
            if not set(reached(found.changes, seen.case.family)).isdisjoint(seen.own):
                yield found
