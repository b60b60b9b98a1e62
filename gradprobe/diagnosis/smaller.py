"""A smaller case that fails in the same way, where the one asked for has too many scores for hypotheses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from ..model.case import Case, fewer_heads, shortened
from ..model.failures import Failure
from ..model.run import MISMATCH
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, experiment_of
from ..probing.insides import with_insides
from ..probing.runs import outcomes_of, records_of, with_strays

# Elements of all score matrices together up to which hypotheses are tried: each takes an evaluation or two.
MOST_SCORES = 1 << 18
# Lengths are shortened to one of these and a remainder.
_SPANS = (64, 128, 256)
# Batches and key heads: two show what one hides. The rest of the time goes to one of each, and to longer sequences.
_COUNTS = ((2, 2), (1, 2), (1, 1))
# Seconds after which no further case is tried.
_LONGEST = 20.0


def smaller_failing(experiment: Experiment, failing: LayoutRun) -> tuple[Experiment, list[LayoutRun]] | None:
    """The first of some smaller cases in which the same result is the first wrong one, in the layout that failed.

    Returns:
        The case's experiment and its runs; None where every case that was tried is right or fails otherwise, and where
        values or lengths are given one by one.
    """
    start = time.perf_counter()
    for case in _smaller(experiment.case):
        if time.perf_counter() - start > _LONGEST:
            return None
        alone = replace(case, layouts=failing.assigned, runs=(), configs="first", repeat=1)
        small = experiment_of(alone, experiment.target, experiment.reference, command=experiment.command)
        try:
            records = list(records_of(small))
            small = small.after(outcomes_of(records))
            runs = with_strays(with_insides(small, records))
        except Failure:  # such as a length that the target does not take
            continue
        if any(run.measured and _fails_alike(run.measured, failing) for run in runs):
            return small, runs
    return None


def size_in_words(case: Case) -> str:
    """The options that give a case its size."""
    lengths = {"seqlen-q": case.seqlen_q, "seqlen-k": case.seqlen_k}
    lengths = {"seqlen": case.seqlen_q} if case.seqlen_q == case.seqlen_k else lengths
    heads = {"heads": case.heads} | ({"kv-heads": case.kv_heads} if case.kv_heads != case.heads else {})
    return " ".join(f"--{name} {value}" for name, value in ({"batch": case.batch} | heads | lengths).items())


def _fails_alike(measured: Measured, failing: LayoutRun) -> bool:
    """Whether the first result that is wrong by itself is the same, among what both runs returned."""
    assert failing.measured is not None
    here, there = measured.comparison.findings, failing.measured.comparison.findings
    wrong = [[name for name, finding in found.items() if finding.status == MISMATCH] for found in (here, there)]
    return bool(wrong[1]) and wrong[0][:1] == wrong[1][:1]


def _smaller(case: Case) -> Iterator[Case]:
    """Cases of the same options with fewer batches, heads, rows and keys, the quickest first."""
    if case.inputs or case.seqlens or case.cu_seqlens_q:
        return
    tried = {case}
    for span in _SPANS:
        for batches, key_heads in _COUNTS:
            small = case.with_heads(*fewer_heads(case.heads, case.kv_heads, key_heads))
            small = small.with_lengths(shortened(case.seqlen_q, span), shortened(case.seqlen_k, span))
            small = replace(small, batch=min(case.batch, batches))
            if small.scores <= MOST_SCORES and small not in tried:
                tried.add(small)
                yield small
