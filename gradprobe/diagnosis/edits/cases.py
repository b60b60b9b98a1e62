"""The cases that an edit is tried on: a smaller one that fails alike, the check's own layouts, and a fresh draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...model.case import Case, fewer_heads, shortened
from ...numerics.evidence import LayoutRun

# Lengths beyond two of these are cut to one and the remainder.
_SPAN = 64
# By how much a fresh draw is longer: it ends inside a tile of any size, unless that makes a multiple of the least one.
_LONGER, _LEAST_TILE = 5, 16


def smaller(case: Case, failing: LayoutRun) -> Iterator[Case]:
    """Cases that are quicker than the one that failed and may fail alike, the quickest first; at last itself."""
    if not (case.inputs or case.seqlens or case.cu_seqlens_q):
        cut = case.with_lengths(shortened(case.seqlen_q, _SPAN), shortened(case.seqlen_k, _SPAN))
        batch, head = _first_wrong(case, failing)
        # Some take only the lengths that were asked for.
        for long in dict.fromkeys((cut, case)):
            of_first = _few(long, batch + 1, head + 1)
            yield from sorted({of_first, _few(long, 2, 2), long} - {case}, key=_scores)
    yield case


def _few(case: Case, batches: int, key_heads: int) -> Case:
    few = replace(case, batch=min(case.batch, batches))
    return few.with_heads(*fewer_heads(case.heads, case.kv_heads, key_heads))


def _scores(case: Case) -> int:
    return case.batch * case.heads * case.seqlen_q * case.seqlen_k


def _first_wrong(case: Case, failing: LayoutRun) -> tuple[int, int]:
    """The first batch with a wrong element, and the first key head that has one."""
    batches, heads = [], []
    for finding in failing.measured.comparison.findings.values() if failing.measured else ():
        several, of = finding.wrong.shape[:2]
        for batch, head, *_ in (finding.wrong > 0).nonzero().tolist():
            heads.append(head * case.kv_heads // of)
            batches += [batch] if several > 1 or case.batch == 1 else []
    return min(batches, default=0), min(heads, default=0)


def fresh(case: Case) -> list[Case]:
    """The case with other values: with lengths that end inside a tile, with twice its own, and with its own.

    None where values are given.
    """
    if case.inputs:
        return []
    other = replace(case, seed=case.seed + 1)
    if case.seqlens or case.cu_seqlens_q:
        return [other]
    longer = other.with_lengths(_longer(case.seqlen_q), _longer(case.seqlen_k))
    return [longer, other.with_lengths(2 * case.seqlen_q, 2 * case.seqlen_k), other]


def _longer(length: int) -> int:
    longer = length + _LONGER
    return longer + (longer % _LEAST_TILE == 0)


def in_words(case: Case) -> str:
    """What of a case differs from draw to draw: "seed 1, 100 rows and 80 keys"."""
    keys = f" and {case.seqlen_k} keys" if case.seqlen_k != case.seqlen_q else ""
    return f"seed {case.seed}, {case.seqlen_q} rows{keys}"
