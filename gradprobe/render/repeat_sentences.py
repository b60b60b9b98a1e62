"""Sentences about repeated runs: what differs between them, what may do that, and what is wrong in all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from ..model.layout_run import RepeatedResult
from ..model.number import in_words, plural, ratio, spans
from ..model.report import Report


def repeat_sentences(report: Report) -> Iterator[str]:
    """Of each intermediate the first layout that shows anything, with the others that do."""
    runs = [run for run in report.measured if run.repeats]
    shown: dict[str, list[str]] = {}
    for run in runs:
        for one in run.repeated:
            shown.setdefault(one.name, []).append(run.layout)
    for run in runs:
        for result in (one for one in run.repeated if shown[one.name][0] == run.layout):
            others = shown[result.name][1:]
            where = f" ({', '.join([run.layout, *others])})" if len(runs) > 1 else ""
            yield from (f"{sentence}{where}" for sentence in _of(result))
    if runs and not any(one.differing for run in runs for one in run.repeated):
        yield f"{runs[0].repeats} runs gave the same bits"


def _of(result: RepeatedResult) -> Iterator[str]:
    if result.wrong_in == result.runs and result.wrong_heads:
        yield f"{result.name} is wrong in {_heads(result.wrong_heads)} in each of {result.runs} runs, {_alike(result)}"
    elif result.wrong_in:
        word = (
            "other heads"
            if result.wrong_in == result.runs
            else f"{result.wrong_in} of {result.runs} runs"
        )
        yield f"{result.name} is wrong in {word} only: a race, or what one call leaves to the next"
    if result.differing:
        place = "".join(f", {words}" for words in (_heads(result.heads), _tiles(result)) if words)
        count = plural(result.differing, "element")
        yield f"{result.name} differs from run to run in {count}{place}{_by(result)}: {_cause(result)}"


def _alike(result: RepeatedResult) -> str:
    if result.wrong_spread is None:
        return (
            "by the same numbers: not noise"
            if not result.differing
            else "and differs between them"
        )
    if result.wrong_spread == 0:
        return "by the same numbers: not noise"
    if result.wrong_spread <= 1:
        return (
            f"by the same numbers to {ratio(result.wrong_spread)} of what is allowed: not noise"
        )
    return f"by numbers that differ by up to {ratio(result.wrong_spread)}x what is allowed"


def _by(result: RepeatedResult) -> str:
    return "" if result.spread is None else f", by up to {ratio(result.spread)}x what is allowed"


def _cause(result: RepeatedResult) -> str:
    lines = ", ".join(
        dict.fromkeys(f"{PurePath(at.file).name}:{at.line}" for at in result.atomics)
    )
    is_small = result.spread is None or result.spread <= 1
    if lines:
        at = f"the order of the atomics at {lines}"
        return f"{at}, which is rounding" if is_small else f"more than {at} can do"
    return "no atomic was found that adds into it" + (
        "" if is_small else "; a race, or what one call leaves to the next"
    )


def _heads(heads: Sequence[tuple[int | None, int]]) -> str:
    found = sorted({head for _, head in heads})
    return f"head{'s' if len(found) > 1 else ''} {in_words(spans(found), 6)}" if found else ""


def _tiles(result: RepeatedResult) -> str:
    rows = "keys" if result.name in ("dK", "dV") else "rows"
    return f"tiles {in_words(result.tiles, 6)} of {result.block} {rows}" if result.tiles else ""
