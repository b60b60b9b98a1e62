"""P, dP, dS and delta of a failing run: seen in its kernels where these are interpreted, and judged; else recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from ..numerics.evidence import LayoutRun, Measured, SeenRow
from ..numerics.locate import locate
from ..numerics.tally import Finding, RisingErrors
from ..probing.experiment import Experiment
from ..probing.insides import MOST_INTERPRETED, with_insides
from ..probing.runs import RunRecord
from ..runtime.trace import Trace, expected_shapes

if TYPE_CHECKING:
    from .follow import FollowedRun
    from .kernel_values import KernelValue


def with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """The records with what the target does not expose: seen in the first that fails, else recovered.

    A target in Triton's interpreter is run once more in that layout, and followed. Where that shows P or dS of every
    gradient that is wrong, nothing is recovered; where it does not, what was followed stays for the diagnosis.
    """
    for at, record in enumerate(records):
        if (run := record.run) is not None and _is_watchable(experiment, record, run):
            experiment.tick(f"following {run.layout}", 0.0, f"{run.layout}, followed")
            # It imports Triton, which only a run in the interpreter has surely done already.
            from .dataflow import seen_in_dataflow

            with experiment.stopwatch.timed("compare"):
                read = partial(shown_in, experiment.case, run.measured)
                run = replace(run, watched=seen_in_dataflow(experiment, run, read))
            records = [*records[:at], replace(record, run=run), *records[at + 1 :]]
            return records if run.watched and run.watched.shown else with_insides(experiment, records)
    return with_insides(experiment, records)


def _is_watchable(experiment: Experiment, record: RunRecord, run: LayoutRun) -> bool:
    """Whether a run is wrong, hides P or dS, and can be followed."""
    case, measured = experiment.case, run.measured
    return (
        INTERPRETED in experiment.backends
        and case.recover and experiment.reference is None and case.scores <= MOST_INTERPRETED
        and not case.cu_seqlens_q and not case.dropout
        and measured is not None
        and not measured.comparison.matches and not measured.coarser
        and measured.is_recoverable
    )  # fmt: skip


# --- judged


@door("dataflow/seen")
def shown_in(case: Case, own: Measured, run: FollowedRun) -> Measured | None:
    """A run's results and what its kernels hold, judged; None where that does not show what they are made of."""
    from .kernel_values import kernel_values

    return shown_with(case, own, [*kernel_values(run, case)])


def shown_with(case: Case, own: Measured, seen: Sequence[KernelValue]) -> Measured | None:
    """A run's results and what was seen of its kernels, judged; None where that does not show what they are made of.

    Each gradient is judged with what its own kernel holds, so that it is called inherited where it is right given that.
    """
    seen = [one for one in seen if one.name not in own.trace.values]
    findings, gradients = own.comparison.findings, [name for name in MATRIX_OF if name in own.trace.values]
    chains = {name: _chain(case, own, name, seen) for name in gradients}
    rows = _rows(case, own, seen, chains)
    shown = {(row.finding.name, gradient) for row in rows for gradient in row.into}
    for name in [name for name in gradients if findings[name].mismatched] or gradients:
        if MATRIX_OF[name] not in own.trace.values and (MATRIX_OF[name], name) not in shown:
            return None
    if not rows or not all(_is_proved(own, row) for row in rows):
        return None
    known = dict(findings)
    for name, finding in findings.items():
        judging = [chains[name]] if name in chains else chains.values() if name in GRADIENT_OF.values() else []
        for chain in judging:
            known[name] = _less_blamed(known[name], chain.comparison.findings.get(name, finding))
    for row in rows:  # the first that is wrong stands for all of its name
        before = known.setdefault(row.finding.name, row.finding)
        if row.finding.status == MISMATCH != before.status:
            known[row.finding.name] = row.finding
    known = {name: known[name] for name in names() if name in known}
    absent = tuple(name for name in own.comparison.absent if name not in known)
    trace = replace(own.trace, sources={name: own.trace.sources.get(name, "seen") for name in known})
    comparison = promoted(replace(own.comparison, findings=known, absent=absent))
    judged = replace(own, trace=trace, comparison=comparison, rows=tuple(rows))
    return replace(judged, first=_first(judged))


def _chain(case: Case, own: Measured, gradient: str, seen: Sequence[KernelValue], *, coarse: bool = False) -> Measured:
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


def _rows(case: Case, own: Measured, seen: Sequence[KernelValue], chains: Mapping[str, Measured]) -> list[SeenRow]:
    """Each that was seen, judged: kernel by kernel, and in each in dataflow order."""
    found, kernels = list[SeenRow](), list[str]()
    for value in seen:
        into = [name for name in names() if name in value.into]
        gradient = next((name for name in chains if name in into), "")
        if gradient:
            measured = chains[gradient]
            if measured.comparison.findings[value.name].mismatched:
                # What a coarser arithmetic explains is held to that: what it goes into may be right all the same.
                coarse = _chain(case, own, gradient, seen, coarse=True)
                measured = measured if coarse.comparison.findings[value.name].mismatched else coarse
            kernels.append(_place(value, seen))
            found.append(SeenRow(kernels[-1], tuple(into), measured.comparison.findings[value.name], measured))
    return sorted(found, key=lambda row: (kernels.index(row.kernel), names().index(row.finding.name)))


def _place(value: KernelValue, seen: Sequence[KernelValue]) -> str:
    """The kernel, and what is computed for where the kernel computes it again for other gradients."""
    together = set(value.into)
    here = [other.into for other in seen if other.kernel == value.kernel]
    for other in (*here, *here):
        together |= other if together & other else set()
    is_all = all(other <= together for other in here)
    return value.kernel if is_all else f"{value.kernel} for {listed([x for x in names() if x in together])}"


def _is_proved(own: Measured, row: SeenRow) -> bool:
    """Whether all that a row goes into is wrong wherever the row is: else it may not be what it is held for."""
    wrong = row.finding.wrong > 0
    for finding in (own.comparison.findings[name] for name in row.into if name in own.comparison.findings):
        heads = (finding.wrong > 0).repeat_interleave(wrong.shape[1] // finding.wrong.shape[1], 1)
        if bool((wrong & ~heads).any()):
            return False
    return True


def _less_blamed(own: Finding, judged: Finding) -> Finding:
    """A finding whose wrong heads inherit where one of the two says so."""
    if not own.mismatched:
        return own
    left = own.own.minimum(judged.own)
    return replace(own, own=left, rising_own=own.rising_own if bool(left.any()) else RisingErrors())


def _first(judged: Measured) -> Element | None:
    """The first mismatch: of what belongs to the forward, of the kernels in their order, of the gradients."""
    seen = {row.finding.name for row in judged.rows}
    wrong = {name: one for name, one in judged.comparison.findings.items() if one.status == MISMATCH}
    plain = {name: one for name, one in wrong.items() if name not in seen}
    row = next((row for row in judged.rows if row.finding.status == MISMATCH), None)
    if row is None or any(names().index(name) < names().index("dQ") for name in plain):
        return locate(judged.x, judged.trace, replace(judged.comparison, findings=plain))
    alone = replace(row.measured.comparison, findings={row.finding.name: row.finding})
    element = locate(row.measured.x, row.measured.trace, alone)
    return structs.replace(element, kernel=row.kernel) if element else None
