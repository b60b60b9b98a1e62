"""What changed since the last check of somebody who is fixing a kernel: heads that came right, verdicts, causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..model.number import plural
from ..model.report import Report
from ..model.run import NOT_EXPOSED, Intermediate, Run
from .comparison import MOVED
from .text import ratio


def since(before: Report | None, after: Report) -> Iterator[str]:
    """`dS: 12 heads wrong -> 4`, `distinct: mismatch -> match`, of the layouts that both have.

    Args:
        before: None where nothing was compared before.
    """
    if before is None:
        return
    layouts = {run.layout for run in before.runs} & {run.layout for run in after.runs}
    old, new = ([run for run in report.runs if run.layout in layouts] for report in (before, after))
    then, now, verdicts = _by_name(old), _by_name(new), {run.layout: run.verdict for run in old}
    changes = [(name, _of_intermediate(then[name], now[name])) for name in now if name in then]
    changes += [(run.layout, _of_verdicts(verdicts[run.layout], run.verdict)) for run in new]
    for change in dict.fromkeys(change for _, change in changes if change):
        yield f"{', '.join(name for name, own in changes if own == change)}: {change}"
    yield from _of_causes(before, after)


def _by_name(runs: Iterable[Run]) -> dict[str, list[Intermediate]]:
    found: dict[str, list[Intermediate]] = {}
    for one in (one for run in runs for one in run.intermediates if one.status != NOT_EXPOSED):
        found.setdefault(one.title, []).append(one)
    return found


def _of_intermediate(before: list[Intermediate], after: list[Intermediate]) -> str:
    then, now = _wrong(before), _wrong(after)
    worst_then, worst_now = (max(one.ratio for one in found) for found in (before, after))
    if then != now:
        others = " others" if len(then) == len(now) else ""
        return f"{_heads(then)} -> {f'{len(now)}{others}' if then and now else _heads(now)}"
    moved = now and max(worst_then, worst_now) > MOVED * min(worst_then, worst_now)
    return f"{_heads(now)}, the worst {ratio(worst_then)}x -> {ratio(worst_now)}x" if moved else ""


def _of_verdicts(before: str, after: str) -> str:
    return "" if before == after else f"{before} -> {after}"


def _wrong(found: list[Intermediate]) -> set[tuple[int | None, int]]:
    """(batch, head) of those that are wrong in some layout."""
    return {(head.batch, head.head) for one in found for head in one.heads if head.mismatched}


def _heads(wrong: set[tuple[int | None, int]]) -> str:
    return f"{plural(len(wrong), 'head')} wrong" if wrong else "right"


def _of_causes(before: Report, after: Report) -> Iterator[str]:
    if not before.causes or not after.causes:  # what is right, or not over yet, has none
        return
    then, now = ({cause.fault: cause.summary for cause in report.causes} for report in (before, after))
    yield from (f"no cause any more: {then[fault]}" for fault in then if fault not in now)
    yield from (f"a new cause: {now[fault]}" for fault in now if fault not in then)
