"""What really ran, on what device and versions, and the notes of a report."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator, Sequence

import torch

from ..frontends.interface import BACKENDS, TORCH
from ..frontends.python import plain_function
from ..inputs.history import installed_versions
from ..model.case import Case
from ..model.memory_finding import SHUFFLE
from ..model.number import in_words, spans
from ..model.report import CheckedTarget, Source
from ..runtime.versions import untested
from ..targets.find import Target
from ..targets.naming import LoadedSource, edited_modules
from .experiment import Experiment, sentences_of_dots
from .runs import RunRecord, outcomes_of


def notes_of(experiment: Experiment, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Sentences about the case and what was skipped, each once."""
    case, changed = experiment.case, experiment.target.surroundings.sentence
    notes = [f"the values are those of {case.inputs}"] if case.inputs is not None else []
    notes += [*_zeros_by_design(case), *sentences_of_dots(experiment)]
    if changed:
        notes.append(f"the target changes, for all of its process, {changed}: it is judged without")
    for record in records:
        for execution in record.executions:
            notes += [configuration.sentence for configuration in execution.outcome.configurations]
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
