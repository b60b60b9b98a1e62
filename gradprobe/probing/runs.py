"""The runs of a target: one for each layout, and what a report says of them."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..frontends import BACKENDS, TORCH
from ..inputs.guard_bands import LARGE, NAN
from ..inputs.tensor_layouts import laid
from ..model.assignment import ORDERED_RUN, UNIT_RUN, Assigned
from ..model.layout_run import Line
from ..model.memory_finding import RACE, SHUFFLE, MemoryFinding, telling, worst_first
from ..model.report import CheckedTarget, Source
from ..numerics.evidence import LayoutRun
from ..numerics.range import zeros_by_design
from ..runtime.run import Outcome
from ..targets.definitions import files_with_kernels
from ..targets.naming import LoadedSource
from .experiment import Experiment, dots_sentence, inputs_of, layouts_of
from .measure import measure
from .observe import Execution, accepted, execute


@dataclass(frozen=True)
class RunRecord:
    run: LayoutRun
    executions: tuple[Execution, ...] = ()
    notes: tuple[str, ...] = ()

    def with_more(
        self, executions: Iterable[Execution] = (), notes: Iterable[str] = ()
    ) -> RunRecord:
        """The same after further executions, with what those in its layout did to memory.

        Reads without a value are decided by its own results; a known race meets other programs in more batches.
        """
        run, found = self.run, {finding.identity: finding for finding in self.run.memory}
        places = set(map(attrgetter("place_of_access"), run.memory))
        for execution in executions:
            for finding in execution.memory if execution.layout == run.layout else ():
                is_known = finding.kind == RACE and finding.place_of_access in places
                if not (is_known or finding.is_read_without_value):
                    found.setdefault(finding.identity, finding)
        run = replace(run, memory=tuple(worst_first(found.values())) if found else ())
        return RunRecord(run, (*self.executions, *executions), (*self.notes, *notes))


def outcomes_of(records: Iterable[RunRecord]) -> Iterator[Outcome]:
    for record in records:
        yield from map(attrgetter("outcome"), record.executions)


def records_of(experiment: Experiment) -> Iterator[RunRecord]:
    """Each run of a case under all of its layouts, as soon as it is measured.

    Where `distinct` is refused or never reaches the kernels, `distinct-unit` follows; or what keeps the order of axes.
    """
    case = experiment.case
    for assigned in layouts_of(case):
        record = _record(experiment, assigned)
        experiment = experiment.after(outcomes_of([record]))
        yield record
        if record.run.layout != "distinct" or case.layouts or case.runs:
            continue
        # Many wrappers make a tensor contiguous where its last stride is not 1, and look right whatever strides they
        # mix up: inputs were copied that the kernels took as they lay in the first run.
        taken = experiment.first.taken if experiment.first else frozenset()
        if record.run.measured is None or taken - record.executions[-1].outcome.taken:
            unit = _record(experiment, UNIT_RUN)
            yield unit
            in_order = None if unit.run.measured else _record(experiment, ORDERED_RUN)
            if in_order is not None and (in_order.run.measured or in_order.run.memory):
                yield in_order


def _record(experiment: Experiment, assigned: Assigned) -> RunRecord:
    inputs, case = inputs_of(experiment, assigned), experiment.case
    first = execute(experiment, inputs)
    trace, first = first.outcome.trace, first.without_tensors()
    refused, lies = first.outcome.refused, laid(case, inputs)
    run = LayoutRun(inputs.layout, assigned, None, refused, laid=lies)
    if trace is None:
        return RunRecord(replace(run, memory=telling(first.memory, False)), (first,))
    experiment, executions = experiment.after([first.outcome]), [first]
    measured = measure(experiment, replace(inputs, tensors={}), trace)
    run = _repeated(experiment, replace(run, measured=measured), executions)
    memory: dict[Any, MemoryFinding] = {}
    for finding in chain.from_iterable(map(attrgetter("memory"), executions)):
        memory.setdefault(finding.identity, finding)
    if memory:
        findings = (run.measured or measured).comparison.findings.values()
        is_not_finite = any(map(attrgetter("non_finite"), findings))
        run = replace(run, memory=telling(memory.values(), is_not_finite))
    return RunRecord(run, tuple(executions))


def _repeated(experiment: Experiment, run: LayoutRun, executions: list[Execution]) -> LayoutRun:
    """The run, or its first wrong repeat."""
    case, first = experiment.case, run.measured
    if case.repeat == 1 or first is None:
        return run
    from ..numerics.repeats import Repeats, differing

    seen, kept = Repeats(case, first), first
    for number in range(1, case.repeat):
        of = experiment
        if case.poison and number % 2:  # what a sum or a maximum takes for a number
            fill = LARGE if of.fill == NAN else of.fill
            of = replace(of, unwritten=7.0, fill=fill)
        # Laid out afresh: a target may have written over its inputs.
        inputs = inputs_of(of, run.assigned)
        trace, again = accepted(of, inputs, number)
        executions.append(again)
        is_same = trace.values.keys() == first.raw.values.keys()
        is_same = is_same and not differing(trace, first.raw)
        measured = first if is_same else measure(of, inputs, trace)
        seen.add(measured)
        if kept.matches and not measured.matches:
            kept = measured
    repeated = seen.found(_atomics_into(executions[0].outcome, seen.varying))
    return replace(run, measured=kept, repeats=seen.count, repeated=repeated)


def _atomics_into(outcome: Outcome, names: Collection[str]) -> dict[str, dict[Line, None]]:
    from ..source.pointers import atomics_into, cuda_atomics

    found = defaultdict[str, dict[Line, None]](dict)
    for name in names:
        for kernel, parameter in _pointers_to(outcome, name):
            with contextlib.suppress(OSError, SyntaxError):  # its source is not there
                found[name] |= dict.fromkeys(atomics_into(kernel, {parameter}))
    for source in outcome.kernels:
        is_cuda = not source.file.endswith(".py") and Path(source.file).is_file()
        text = Path(source.file).read_text(errors="replace") if is_cuda else ""
        for name, line in cuda_atomics(source.file, text):
            found[name][line] = None
    return found


def _pointers_to(outcome: Outcome, name: str) -> list[tuple[Any, str]]:
    if not outcome.calls:  # else Triton is loaded
        return []
    from ..source.pointers import named_after

    named, there = dict[tuple[Any, str], None](), dict[tuple[Any, str], None]()
    for call in outcome.calls:
        for parameter, storage in call.pointers:
            if named_after(parameter) == name:
                named[call.kernel, parameter] = None
            if outcome.storages.get(storage, "").lower() == name.lower():
                there[call.kernel, parameter] = None
    # A storage may have been another tensor's before: names decide where there are some.
    return list(named or there)


# --- what a report says of them


def notes_of(experiment: Experiment, records: Sequence[RunRecord]) -> tuple[str, ...]:
    case, changed = experiment.case, experiment.target.surroundings.sentence
    notes = [f"the values are those of {case.inputs}"] if case.inputs is not None else []
    notes += [*zeros_by_design(case), dots_sentence(experiment)]
    if changed:
        notes.append(
            f"the target changes, for all of its process, {changed}: it is judged without"
        )
    for record in records:
        counted = set(map(attrgetter("identity"), record.run.memory))
        for execution in record.executions:
            for words in execution.unwatched:
                notes.append(
                    f"some accesses could not be watched, by a fault of gradprobe: {words}"
                )
            notes += execution.outcome.notes
            # What lanes without a value gave that came to nothing, as in the upper half of a warp.
            for finding in execution.memory:
                if finding.kind == SHUFFLE and finding.identity not in counted:
                    notes.append(f"{finding.sentence}; no result shows it")
        if record.run.measured is not None and not case.strict:
            notes += map(attrgetter("sentence"), record.run.measured.conventions)
        notes += record.notes
    return tuple(dict.fromkeys(filter(None, notes)))


def target_that_ran(experiment: Experiment, records: Iterable[RunRecord]) -> CheckedTarget:
    kernels, seen, target = dict[LoadedSource, Source](), set[str](), experiment.target
    source, reference = target.source, experiment.reference
    shadows = dict.fromkeys(source.shadows)
    for outcome in outcomes_of(records):
        seen |= outcome.backends
        for at in outcome.kernels:
            kernels[at] = Source(name=at.name, file=at.file, line=at.line, sha256=at.sha256)
            shadows |= dict.fromkeys(at.shadows)
    backend = next(filter(seen.__contains__, BACKENDS), TORCH)
    return CheckedTarget(
        name=target.name, family=experiment.case.family, backend=backend, function=source.name,
        file=source.file, line=source.line, sha256=source.sha256, shadows=tuple(shadows),
        kernels=tuple(kernels.values()),
        idle=files_with_kernels(target) if backend == TORCH else (),
        reference=reference.name if reference else "gradprobe.reference, float64",
    )  # fmt: skip
