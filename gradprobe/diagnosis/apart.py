"""P, dP, dS and delta of a failing run, seen in each kernel apart and judged: what takes the place of a recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import torch
from msgspec import structs

from ..frontends.interface import INTERPRETED
from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, MATRIX_OF, names
from ..model.layout_run import MISMATCH, Element
from ..model.mechanisms import door
from ..model.number import listed
from ..numerics.compare import compare, promoted
from ..numerics.evidence import Measured, SeenRow
from ..numerics.locate import locate
from ..numerics.tally import Finding, RisingErrors
from ..probing.experiment import Experiment
from ..probing.insides import MOST_INTERPRETED, with_insides
from ..probing.runs import RunRecord
from ..runtime.trace import Trace, expected_shapes

if TYPE_CHECKING:
    from .follow import FollowedRun
    from .seen import SeenValue


def with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """The records with what the target does not expose: seen in the first that fails, else recovered.

    A target in Triton's interpreter is run once more in that layout, and followed. Where that shows P or dS of every
    gradient that is wrong, nothing is recovered; where it does not, what was followed stays for the diagnosis.
    """
    at = next((at for at, record in enumerate(records) if _is_watchable(experiment, record)), None)
    if at is None:
        return with_insides(experiment, records)
    run, record = records[at].run, records[at]
    assert run is not None
    assert run.measured is not None
    experiment.tick(f"following {run.layout}", 0.0, f"{run.layout}, followed")
    # It imports Triton, which only a run in the interpreter has surely done already.
    from .dataflow import seen_in_dataflow

    with experiment.stopwatch.timed("compare"):
        watched = seen_in_dataflow(experiment, run, partial(_shown, experiment.case, run.measured))
    records = [*records[:at], replace(record, run=replace(run, watched=watched)), *records[at + 1 :]]
    return records if watched.shown is not None else with_insides(experiment, records)


def _is_watchable(experiment: Experiment, record: RunRecord) -> bool:
    """Whether a run is wrong, hides P or dS, and can be followed."""
    case, run = experiment.case, record.run
    return (
        INTERPRETED in experiment.backends
        and case.recover and experiment.reference is None and case.scores <= MOST_INTERPRETED
        and not case.cu_seqlens_q and not case.dropout
        and run is not None and run.measured is not None and record.configuration is None
        and not run.measured.comparison.matches and not run.measured.coarser
        and run.measured.is_recoverable
    )  # fmt: skip


@door("dataflow/seen")
def _shown(case: Case, measured: Measured, followed: FollowedRun) -> Measured | None:
    """What the kernels of a run hold, judged."""
    from .seen import seen_in

    return shown_with(case, measured, seen_in(followed, case))


def shown_with(case: Case, own: Measured, seen: Sequence[SeenValue]) -> Measured | None:
    """A run's results and what its kernels hold, judged; None where that does not show what they are made of.

    Each gradient is judged with what its own kernel holds, so that it is called inherited where it is right given that.
    """
    seen = [one for one in seen if one.name not in own.trace.values]
    wrong = {name for name, finding in own.comparison.findings.items() if finding.mismatched}
    gradients = [name for name in MATRIX_OF if name in own.trace.values]
    chains = {name: _chain(case, own, name, seen) for name in gradients}
    rows = tuple(_rows(case, own, seen, chains))
    shown = {(one.finding.name, gradient) for one in rows for gradient in one.into}
    needed = {(MATRIX_OF[name], name) for name in (wrong & chains.keys() or gradients)}
    needed = {pair for pair in needed if pair[0] not in own.trace.values}
    if not rows or not needed <= shown or not all(_is_proved(own, one) for one in rows):
        return None
    return _beside(own, rows, {name: one.comparison.findings for name, one in chains.items()})


def _chain(case: Case, own: Measured, gradient: str, seen: Sequence[SeenValue], *, coarse: bool = False) -> Measured:
    """A gradient with what its kernel made it of, compared: each judged by the formulas and by its own inputs.

    Args:
        coarse: whether by an arithmetic that is coarser than the contract.
    """
    values = {name: value for name, value in own.trace.values.items() if name not in MATRIX_OF or name == gradient}
    for value in seen:
        if gradient in value.into:
            dtype = getattr(torch, case.dtype) if value.is_rounded else torch.float32
            # Triton's interpreter holds it on the host, also where the target's own tensors lie on a GPU.
            values[value.name] = torch.from_numpy(value.values).to(own.x.q.device, dtype)
    order = [name for name in expected_shapes(case) if name in values]
    trace = Trace({name: values[name] for name in order}, dict.fromkeys(order, "seen"))
    precision = own.comparison.precision.coarser if coarse else own.comparison.precision
    comparison = compare(case, own.x, trace, precision, evaluate=own.comparison.evaluate, blame=not coarse)
    return replace(own, trace=trace, comparison=comparison)


def _rows(case: Case, own: Measured, seen: Sequence[SeenValue], chains: Mapping[str, Measured]) -> list[SeenRow]:
    """Each that was seen, judged: kernel by kernel, and in each in dataflow order."""
    found = []
    for value in seen:
        gradient = next((name for name in chains if name in value.into), None)
        if gradient is None:
            continue
        measured, into = chains[gradient], tuple(name for name in names() if name in value.into)
        if measured.comparison.findings[value.name].mismatched:
            # What a coarser arithmetic explains is held to that: what it goes into may be right all the same.
            coarse = _chain(case, own, gradient, seen, coarse=True)
            measured = measured if coarse.comparison.findings[value.name].mismatched else coarse
        found.append(SeenRow(_place(value, seen), into, measured.comparison.findings[value.name], measured))
    kernels = list(dict.fromkeys(one.kernel for one in found))
    return sorted(found, key=lambda row: (kernels.index(row.kernel), names().index(row.finding.name)))


def _place(value: SeenValue, seen: Sequence[SeenValue]) -> str:
    """The kernel, and what is computed for where the kernel computes it again for other gradients."""
    here = [other for other in seen if other.kernel == value.kernel]
    together = reduce(lambda known, other: known | other.into if known & other.into else known, 2 * here, value.into)
    if together == frozenset().union(*(other.into for other in here)):
        if sum(other.name == value.name for other in here) == 1:
            return value.kernel
        together = value.into
    return f"{value.kernel} for {listed([name for name in names() if name in together])}"


def _is_proved(own: Measured, row: SeenRow) -> bool:
    """Whether all that a row goes into is wrong wherever the row is: else it may not be what it is held for."""
    wrong = row.finding.wrong > 0
    for finding in (own.comparison.findings[name] for name in row.into if name in own.comparison.findings):
        heads = (finding.wrong > 0).repeat_interleave(wrong.shape[1] // finding.wrong.shape[1], 1)
        if bool((wrong & ~heads).any()):
            return False
    return True


def _beside(own: Measured, rows: Sequence[SeenRow], judged: Mapping[str, Mapping[str, Finding]]) -> Measured:
    """The results as they came, inherited where their kernels' own values explain them, and the rows."""
    known = dict(own.comparison.findings)
    for name, finding in own.comparison.findings.items():
        chains = [judged[name]] if name in judged else judged.values() if name in GRADIENT_OF.values() else []
        known[name] = reduce(_less_blamed, (chain.get(name) for chain in chains), finding)
    findings = known | {row.finding.name: row.finding for row in reversed(rows) if row.finding.name not in known}
    worse = {row.finding.name: row.finding for row in reversed(rows) if row.finding.status == MISMATCH}
    findings = {name: (findings | worse)[name] for name in names() if name in findings}
    sources = {name: own.trace.sources.get(name, "seen") for name in findings}
    comparison = replace(
        own.comparison, findings=findings, absent=tuple(name for name in own.comparison.absent if name not in findings)
    )
    shown = replace(own, trace=replace(own.trace, sources=sources), comparison=promoted(comparison), rows=tuple(rows))
    return replace(shown, first=_first(shown))


def _less_blamed(own: Finding, judged: Finding | None) -> Finding:
    """A finding whose wrong heads inherit where one of the two says so."""
    if judged is None or not own.mismatched:
        return own
    left = own.own.minimum(judged.own)
    return replace(own, own=left, rising_own=own.rising_own if bool(left.any()) else RisingErrors())


def _first(shown: Measured) -> Element | None:
    """The first mismatch: of what belongs to the forward, of the kernels in their order, of the gradients."""
    wrong = {name: one for name, one in shown.comparison.findings.items() if one.status == MISMATCH}
    seen = {row.finding.name for row in shown.rows}
    plain = [name for name in wrong if name not in seen]
    row = next((row for row in shown.rows if row.finding.status == MISMATCH), None)
    before = [name for name in plain if names().index(name) < names().index("dQ")]
    if row is None or before:
        return locate(shown.x, shown.trace, replace(shown.comparison, findings={name: wrong[name] for name in plain}))
    alone = replace(row.measured.comparison, findings={row.finding.name: row.finding})
    element = locate(row.measured.x, row.measured.trace, alone)
    return structs.replace(element, kernel=row.kernel) if element else None
