"""The runs of a target: one for each layout, and what a report says of them."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..frontends import BACKENDS, TORCH
from ..frontends.python import plain_function
from ..inputs.guard_bands import same_bits
from ..inputs.tensor_layouts import laid
from ..inputs.versions import installed_versions, untested
from ..model.assignment import ORDERED_RUN, UNIT_RUN, Assigned
from ..model.case import Case
from ..model.layout_run import Line
from ..model.memory_finding import RACE, SHUFFLE, MemoryFinding, telling, worst_first
from ..model.number import in_words, spans
from ..model.report import CheckedTarget, Source
from ..numerics.evidence import LayoutRun, Measured
from ..runtime.run import Outcome
from ..runtime.trace import Trace
from ..targets.find import Target
from ..targets.naming import LoadedSource, edited_modules
from .experiment import Experiment, inputs_of, layouts_of, sentences_of_dots
from .measure import measure
from .observe import Execution, accepted, execute


@dataclass(frozen=True)
class RunRecord:
    """One run of a report, and the executions of the target that it was made from, without their tensors."""

    run: LayoutRun
    executions: tuple[Execution, ...] = ()
    notes: tuple[str, ...] = ()

    def with_more(self, executions: Iterable[Execution] = (), notes: Iterable[str] = ()) -> RunRecord:
        """The same after further executions."""
        return replace(self, executions=(*self.executions, *executions), notes=(*self.notes, *notes))


def outcomes_of(records: Iterable[RunRecord]) -> Iterator[Outcome]:
    """What the executions of some records came to."""
    for record in records:
        for execution in record.executions:
            yield execution.outcome


def records_of(experiment: Experiment) -> Iterator[RunRecord]:
    """A record of each run of a case under all of its layouts, as soon as it is measured."""
    for assigned in layouts_of(experiment.case):
        for record in _of_layout(experiment, assigned):
            experiment = experiment.after(outcomes_of([record]))
            yield record


def runs_of(experiment: Experiment) -> list[LayoutRun]:
    """The runs of a case under all of its layouts."""
    return [record.run for record in records_of(experiment)]


def _of_layout(experiment: Experiment, assigned: Assigned) -> Iterator[RunRecord]:
    """One layout; where `distinct` is refused or never reaches the kernels, `distinct-unit` as well.

    Where that is refused too, also what keeps the order of axes, unless it is refused for the same reason.
    """
    case, record = experiment.case, _record(experiment, assigned)
    yield record
    if record.run.layout != "distinct" or case.layouts or case.runs:
        return
    # Many wrappers make a tensor contiguous where its last stride is not 1, and look right whatever strides they mix
    # up: inputs were copied that the kernels took as they lay in the first run.
    first = experiment.first or record.executions[0].outcome
    is_copied = first.taken - record.executions[-1].outcome.taken
    if record.run.measured is None or is_copied:
        unit = _record(experiment, UNIT_RUN)
        yield unit
        if unit.run.measured is None:
            in_order = _record(experiment, ORDERED_RUN)
            if in_order.run.measured or in_order.run.memory:
                yield in_order


def _record(experiment: Experiment, assigned: Assigned) -> RunRecord:
    """One layout, run as often as the case says, and measured where it is not refused."""
    inputs, case = inputs_of(experiment, assigned), experiment.case
    first = execute(experiment, inputs)
    trace, memory = first.outcome.trace, list(first.memory)
    first = first.without_tensors()
    run = LayoutRun(inputs.layout, assigned, None, first.outcome.refused, laid=laid(case, inputs))
    if trace is None:
        return RunRecord(replace(run, memory=telling(memory, False)), (first,))
    experiment = experiment.after([first.outcome])
    # Of its inputs the values are left.
    measured, repeats = measure(experiment, replace(inputs, tensors={}), trace), list[Execution]()
    if case.repeat > 1:
        run, repeats = _repeated(experiment, run, measured, first)
    else:
        run = replace(run, measured=measured)
    for execution in repeats:
        known = {finding.identity for finding in memory}
        memory += [finding for finding in execution.memory if finding.identity not in known]
    shown = (run.measured or measured).comparison.findings.values()
    non_finite = any(finding.non_finite for finding in shown)
    return RunRecord(replace(run, memory=telling(memory, non_finite)), (first, *repeats))


def _repeated(
    experiment: Experiment, run: LayoutRun, first: Measured, execution: Execution
) -> tuple[LayoutRun, list[Execution]]:
    """The run, in whose place the first wrong repeat stands where it is right; and the executions of the repeats.

    In each the threads and blocks of CUDA kernels on the CPU run in another order.
    """
    from ..numerics.repeats import Repeats

    case = experiment.case
    seen, kept, executions = Repeats(case, first), first, list[Execution]()
    for number in range(1, case.repeat):
        # In every second repeat memory without values holds 7.0, which a sum takes for a number.
        of = replace(experiment, unwritten=7.0) if case.poison and number % 2 else experiment
        inputs = inputs_of(of, run.assigned)  # laid out afresh: a target may have written over its inputs
        trace, again = accepted(of, inputs, number)
        executions.append(again)
        measured = first if _is_same(first.raw, trace) else measure(of, inputs, trace)
        seen.add(measured)
        if kept.matches and not measured.matches:
            kept = measured
    repeated = seen.found(atomics_into(execution.outcome, seen.varying))
    return replace(run, measured=kept, repeats=seen.count, repeated=repeated), executions


def _is_same(first: Trace, again: Trace) -> bool:
    """Whether two runs gave the same, bit by bit."""
    pairs = [(value, again.values.get(name)) for name, value in first.values.items()]
    return len(pairs) == len(again.values) and all(
        other is not None and value.dtype == other.dtype and bool(same_bits(value, other).all())
        for value, other in pairs
    )


def with_strays(records: Sequence[RunRecord]) -> list[LayoutRun]:
    """The runs, with the memory findings of their repeats and looks inside, which run in the same layout.

    Whether memory without values shows was decided by the run's own results. Looks inside have more batches, and what
    leaves a tensor of the case meets another program there: it is the same fault, by another name.
    """
    further: dict[str, list[MemoryFinding]] = {}
    for record in records:
        for execution in record.executions:
            further.setdefault(execution.layout, []).extend(execution.memory)
    runs = []
    for run in (record.run for record in records):
        found = {finding.identity: finding for finding in run.memory}
        places = {finding.place_of_access for finding in run.memory}
        for finding in further.get(run.layout, ()) if run.measured else ():
            is_known = finding.kind == RACE and finding.place_of_access in places
            if not (is_known or finding.is_read_without_value):
                found.setdefault(finding.identity, finding)
        memory = tuple(worst_first(found.values())) if run.measured else run.memory
        runs.append(replace(run, memory=memory))
    return runs


def atomics_into(outcome: Outcome, names: Iterable[str]) -> dict[str, tuple[Line, ...]]:
    """By intermediate, the lines of the launched kernels that add into it by atomics."""
    from ..source import additions

    found: dict[str, dict[Line, None]] = {name: {} for name in names}
    for name, lines in found.items():
        for kernel, parameter in _pointers_to(outcome, name):
            with contextlib.suppress(OSError, SyntaxError):  # its source is not there
                lines.update(dict.fromkeys(additions.atomics_into(kernel, {parameter})))
    for file in {source.file for source in outcome.kernels if not source.file.endswith(".py")}:
        text = Path(file).read_text(errors="replace") if Path(file).is_file() else ""
        for name, line in additions.cuda_atomics(file, text):
            found.get(name, {})[line] = None
    return {name: tuple(lines) for name, lines in found.items()}


def _pointers_to(outcome: Outcome, name: str) -> list[tuple[Any, str]]:
    """The kernels of Triton that were launched with a pointer to an intermediate, and its parameter there."""
    if not outcome.calls:  # else Triton is loaded
        return []
    from ..source.additions import named_after

    named, there = dict[tuple[Any, str], None](), dict[tuple[Any, str], None]()
    for call in outcome.calls:
        for parameter, storage in call.pointers:
            if named_after(parameter) == name:
                named[call.kernel, parameter] = None
            if outcome.storages.get(storage, "").lower() == name.lower():
                there[call.kernel, parameter] = None
    return list(named or there)  # a storage may have been another tensor's before: names decide where there are some


def makes_together(outcome: Outcome, names: Collection[str]) -> bool:
    """Whether one kernel was launched with pointers to all of these intermediates."""
    kernels = [{id(kernel) for kernel, _ in _pointers_to(outcome, name)} for name in names]
    return bool(set.intersection(*kernels))


# --- what a report says of them


def notes_of(experiment: Experiment, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Sentences about the case and what was skipped, each once."""
    case, changed = experiment.case, experiment.target.surroundings.sentence
    notes = [f"the values are those of {case.inputs}"] if case.inputs is not None else []
    notes += [*_zeros_by_design(case), *sentences_of_dots(experiment)]
    if changed:
        notes.append(f"the target changes, for all of its process, {changed}: it is judged without")
    for record in records:
        for execution in record.executions:
            for words in execution.unwatched:
                notes.append(f"some accesses of memory could not be watched, by a fault of gradprobe: {words}")
            notes += execution.outcome.notes
    for record in records:
        if record.run.measured is not None and not case.strict:
            notes += [convention.sentence for convention in record.run.measured.conventions]
        notes += record.notes
        # What lanes without a value gave that came to nothing, as in the upper half of a warp.
        counted = {finding.identity for finding in record.run.memory}
        for execution in record.executions:
            for finding in execution.memory:
                if finding.kind == SHUFFLE and finding.identity not in counted:
                    notes.append(f"{finding.sentence}; no result shows it")
    return tuple(dict.fromkeys(notes))


def warned_in(records: Iterable[RunRecord]) -> tuple[str, ...]:
    """What the target warned of, each once."""
    return tuple(dict.fromkeys(words for outcome in outcomes_of(records) for words in outcome.warned))


def target_that_ran(experiment: Experiment, records: Iterable[RunRecord]) -> CheckedTarget:
    """The target, the kernels that it launched, and what ran them."""
    kernels, seen, target = dict[LoadedSource, None](), set[str](), experiment.target
    for outcome in outcomes_of(records):
        kernels |= dict.fromkeys(outcome.kernels)
        seen |= outcome.backends
    backend = next((word for word in BACKENDS if word in seen), TORCH)
    shadows = dict[str, None]()
    for source in (target.source, *kernels):
        shadows |= dict.fromkeys(source.shadows)
    return CheckedTarget(
        name=target.name,
        family=experiment.case.family,
        backend=backend,
        function=target.source.name,
        file=target.source.file,
        line=target.source.line,
        sha256=target.source.sha256,
        shadows=tuple(shadows),
        kernels=tuple(Source(name=at.name, file=at.file, line=at.line, sha256=at.sha256) for at in kernels),
        idle=_files_with_kernels(target) if backend == TORCH else (),
        reference=experiment.reference.name if experiment.reference else "gradprobe.reference, float64",
    )


def _files_with_kernels(target: Target) -> tuple[str, ...]:
    """The files that define Triton functions, of those that somebody may edit and that a target's names lead to."""
    if "triton.runtime" not in sys.modules:
        return ()
    from ..source.triton_source import kernel_below

    files = []
    for file, module in edited_modules([plain_function(target.function).__module__]).items():
        kernels = filter(None, map(kernel_below, vars(module).values()))
        if any(kernel.fn.__module__ == module.__name__ for kernel in kernels):  # it does not only import them
            files.append(file)
    return tuple(files)


def environment(device: str) -> dict[str, str]:
    """Versions and the device, in words."""
    found = dict(installed_versions())
    found["device"] = torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()})"
    if words := untested():
        found["untested"] = words
    return found


def _zeros_by_design(case: Case) -> Iterator[str]:
    """Sentences about what is 0 by mathematics, which looks like a bug and is none."""
    rows, keys, is_top_left = case.seqlen_q, case.seqlen_k, case.align == "top-left"
    if case.causal and (rows == keys or is_top_left) and case.window is None and not case.sinks:
        yield "row 0 of dS and dQ is 0 by design: it sees one key, so P = 1"
    at_kink = spans([head for head, tau in enumerate(case.tau or ()) if tau <= -1.0])
    if at_kink:
        heads = f"head {in_words(at_kink)}" if len(at_kink) <= 4 else "many heads"
        yield f"row 0 of O is 0 by design where tau <= -1 cancels P = 1: {heads}"
    if case.causal and rows != keys and is_top_left:
        yield "causal is aligned to the top left, j <= i; a bottom-right kernel differs in every row"
    elif case.causal and rows != keys:
        aligned = "causal is aligned to the bottom right, j <= i + N - M"
        yield f"{aligned}; a top-left kernel differs in every row: for one, --align top-left"
        if rows > keys:
            yield f"rows 0 to {rows - keys - 1} see no key (M > N): their P, O and gradients are 0 by design"
    if case.seqlens is not None and min(case.seqlens) < rows:
        yield "rows at or beyond a batch's length are 0 by design, in O and in every gradient"
