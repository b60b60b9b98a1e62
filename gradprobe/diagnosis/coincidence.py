"""What is right only by coincidence: the one tensor that is misread in a small case which a matching check left out.

A stride that equals another one, a length that divides, heads of which each has its own key head. The target runs once
more where these are other numbers. Where it is right, nothing is said. Where it is wrong it is followed, and of one
tensor that a kernel misreads beside others that it reads rightly it is told. A target that does not take such a case
refuses it, or misreads several tensors at once: that is its way and no slip.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..inputs.memory import Array
from ..inputs.options import flags
from ..lint.reading import findings_of
from ..model.allowance import Allowance
from ..model.assignment import UNIT_RUN, Assigned, run_name
from ..model.case import ALIGNMENTS, Case, fewer_heads, shortened
from ..model.failures import Failure
from ..model.intermediates import AXIS_WORDS
from ..model.layout_run import MATCH
from ..model.mechanisms import door, gathered
from ..model.memory_finding import COINCIDENCE, OUTSIDE, WarningNote, telling
from ..model.number import in_words, spans
from ..model.report import Where
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment, experiment_of, inputs_of, silent
from ..probing.measure import measure
from ..probing.observe import execute
from ..processes.forks import ParallelWork
from ..runtime.interpreter.dataflow import Flow, Site
from ..runtime.interpreter.memory.findings import places
from ..source.text import SourceLine
from .explainers.misread import misread
from .explainers.suspect import blamed
from .follow import FollowedRun, followed_run

_DISTINCT: Assigned = (("all", "distinct"),)
# Layouts in which no stride of one tensor is another's.
_TELLING = ("distinct", "distinct-unit", "huge", "huge-scaled")
# No tile is smaller: a length that is a multiple of it may be a whole number of tiles, and a tail of it is one of any.
_TILE = 16
# Two lengths, each of which is more than a tile of 32, and ends inside one.
_LONG, _SHORT = 40, 36
# A length of so many rows is a whole number of tiles of every usual size; more are not needed.
_LARGEST = 128
# Heads and key heads: two of each group, so that no map of one to the other is that of another.
_GROUPED = (4, 2)
# Tensors that a kernel misreads: as many are its way, and no slip.
_A_WAY = 2
# As many runs as one whose values are followed takes the time of.
_FOLLOWED = 6


@dataclass(frozen=True)
class Variation:
    """A small case that a check left out."""

    case: Case
    options: Mapping[str, object]
    """What makes it another case, as options of the command line."""
    layouts: tuple[Assigned, ...] = ((),)
    """The first that the target takes is meant."""

    def flags(self, assigned: Assigned) -> str:
        """`--layout distinct`"""
        layout = {"layout": run_name(assigned)} if assigned else {}
        return " ".join(flags({**self.options, **layout}))


@dataclass(frozen=True)
class _Culprit:
    """A tensor that a kernel reads or writes elsewhere than where it computes."""

    kernel: str
    tensor: str
    reason: str
    line: SourceLine


class CoincidenceSearch:
    """What is right only by coincidence in a check that matches, each line once.

    It is sought in a fork, since a case that the target does not take may end its process, or never end.
    """

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], allowance: Allowance) -> None:
        self._longest, self._since = allowance.seconds, time.monotonic()
        self._fork = ParallelWork(partial(sought, replace(experiment, tick=silent), runs, allowance.count))

    @door("coincidence", lambda search: ((), ()))
    def result(self) -> tuple[tuple[WarningNote, ...], tuple[str, ...]]:
        """What is found, and a sentence where the search was stopped."""
        left = max(0.0, self._since + self._longest - time.monotonic())
        if (found := self._fork.answer(left)) is not None:
            return found, ()
        is_late = time.monotonic() - self._since >= self._longest
        return (), (f"the search for coincidences was stopped after {self._longest:.0f} s",) if is_late else ()

    def __enter__(self) -> CoincidenceSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self._fork.__exit__()


def sought(experiment: Experiment, runs: Sequence[LayoutRun], count: int) -> tuple[WarningNote, ...]:
    """What so many runs come to, made in this process."""
    found = dict[tuple[str, int | None], WarningNote]()
    work, apart = _SmallRuns(experiment, count), variations(experiment.case, runs)
    # Most targets that take each of several cases take all at once, which is one run instead of several.
    if work.left > 0 and len(apart) > 1 and work.is_right(_together(apart)):
        return ()
    for variation in apart:
        for one in work.warnings_in(variation):
            found.setdefault((one.file, one.line), one)
    return tuple(found.values())


def variations(case: Case, runs: Sequence[LayoutRun]) -> list[Variation]:
    """The small cases that the runs of a check say nothing of, each of which differs from it in one way."""
    if case.inputs is not None or case.cu_seqlens_q or case.seqlens:
        return []
    small, found = _small(case), list[Variation]()
    more = {name: getattr(small, name) for name in ("batch", "heads") if getattr(case, name) < getattr(small, name)}
    if not any(layout in _TELLING for run in runs for tensor, layout in run.assigned if tensor == "all"):
        found.append(Variation(small, more, (_DISTINCT, UNIT_RUN)))
    elif more:
        found.append(Variation(small, more))
    alone = replace(small, batch=1)
    is_equal = case.seqlen_q == case.seqlen_k
    if case.seqlen_q % _TILE == 0 and case.seqlen_k % _TILE == 0:
        # Both end inside a tile.
        sizes: dict[str, object] = {"seqlen": _LONG} if is_equal else {"seqlen_q": _LONG, "seqlen_k": _SHORT}
        found.append(Variation(alone.with_lengths(_LONG, _LONG if is_equal else _SHORT), sizes))
    if case.family != "lazy" and is_equal:
        # Fewer rows than keys: the other way round a causal mask leaves rows without any.
        found.append(Variation(alone.with_lengths(_SHORT, _LONG), {"seqlen_q": _SHORT, "seqlen_k": _LONG}))
    if case.family != "lazy" and case.kv_heads == case.heads and "h" in case.shapes:
        found.append(Variation(alone.with_heads(*_GROUPED), dict(zip(("heads", "kv_heads"), _GROUPED, strict=True))))
    return found


def _together(apart: Sequence[Variation]) -> Variation:
    """All of several variations at once."""
    options = {name: word for one in apart for name, word in one.options.items()}
    layouts = next((one.layouts for one in apart if len(one.layouts) > 1), ((),))
    case = apart[0].case
    for variation in apart:
        if "heads" in variation.options:
            case = case.with_heads(variation.case.heads, variation.case.kv_heads)
        if not {"seqlen", "seqlen_q"}.isdisjoint(variation.options):
            case = case.with_lengths(variation.case.seqlen_q, variation.case.seqlen_k)
    return Variation(case, options, layouts)


def _small(case: Case) -> Case:
    """The case with two batches and key heads, where it has an axis for them, and with fewer rows and keys."""
    heads, kv_heads = fewer_heads(case.heads, case.kv_heads, 2)
    if case.heads == 1 and "h" in case.shapes:
        heads, kv_heads = 2, 2
    small = replace(
        case, batch=2 if "b" in case.shapes else 1, heads=heads, kv_heads=kv_heads,
        tau=None if case.tau is None else (case.tau * 2)[:heads],
        layouts=(), runs=(), repeat=1, configs="first", recover=False,
    )  # fmt: skip
    # Each with as full a last tile; one that may be a whole number of tiles stays one.
    lengths = (case.seqlen_q, case.seqlen_k)
    rows, keys = (shortened(each, _LARGEST if each % _TILE == 0 else _LARGEST // 2) for each in lengths)
    return small.with_lengths(rows, keys)


def _corners(experiment: Experiment, variation: Variation) -> list[Variation]:
    """The variation with the diagonal in its corner, and in the other where no run of the check told the two apart."""
    case, plain = variation.case, experiment.case
    is_told = plain.seqlen_q != plain.seqlen_k or "align" in experiment.target.takes
    if is_told or case.seqlen_q == case.seqlen_k or not (case.causal or case.window):
        return [variation]
    others = [word for word in ALIGNMENTS if word != case.align]
    return [variation, *(replace(variation, case=replace(case, align=word)) for word in others)]


class _SmallRuns:
    """The runs of a target on small cases, as many as may be made."""

    def __init__(self, experiment: Experiment, count: int) -> None:
        self._experiment, self.left = experiment, count

    def is_right(self, variation: Variation) -> bool:
        """Whether the target is right in the first layout that it takes."""
        return any(self._has_matched(one) for one in _corners(self._experiment, variation))

    def _has_matched(self, variation: Variation) -> bool:
        return next((run is not None and run.verdict == MATCH for _, run in self._taken(variation)), False)

    def warnings_in(self, variation: Variation) -> list[WarningNote]:
        """What misreads a tensor in the first layout in which the target does not do so in its own way."""
        others = _corners(self._experiment, variation)[1:]
        for ran, run in self._taken(variation):
            if (run is not None and run.verdict == MATCH) or any(map(self._has_matched, others)):
                break
            if run is None or self.left < _FOLLOWED:
                continue
            self.left -= _FOLLOWED
            if culprits := _slips(ran, run):
                return list(_warned(ran, run.assigned, culprits, variation.flags(run.assigned)))
        return []

    def _taken(self, variation: Variation) -> Iterator[tuple[Experiment, LayoutRun | None]]:
        """The runs in the layouts of a variation that the target takes, but those in which it copies what is laid out.

        None in place of one that goes outside several tensors of a kernel.
        """
        first = self._experiment.first
        small = experiment_of(variation.case, self._experiment.target, self._experiment.reference)
        for assigned in variation.layouts[: max(0, self.left)]:
            self.left -= 1
            with contextlib.suppress(Failure):  # such as a length that it does not take
                inputs = inputs_of(small, assigned)
                execution = execute(small, inputs)
                trace, ran = execution.outcome.trace, small.after([execution.outcome])
                copied = first and first.taken - execution.outcome.taken
                if trace is None or (copied and assigned != variation.layouts[-1]):
                    continue
                if _is_a_way({(one.kernel, one.tensor) for one in execution.memory if one.kind == OUTSIDE}):
                    yield ran, None
                    continue
                measured = measure(ran, inputs, trace)
                memory = telling(execution.memory, non_finite=False)
                yield ran, LayoutRun(inputs.layout, assigned, measured, None, memory=memory)


def _slips(experiment: Experiment, run: LayoutRun) -> list[_Culprit]:
    """What kernels misread beside what they read rightly; nothing where one misreads as much as is its way."""
    followed = followed_run(experiment, run.assigned)
    if followed is None:
        return []
    flow, culprits = followed.flow, list(_culprits(followed))
    strange = {(flow.sources[number].site.kernel, flow.sources[number].tensor) for number in flow.irregular}
    return [] if _is_a_way({(one.kernel, one.tensor) for one in culprits} | strange) else culprits


def _is_a_way(misread: Collection[tuple[str, str]]) -> bool:
    """Whether a kernel misreads several of its tensors, of (kernel, tensor)."""
    return max(Counter(kernel for kernel, _ in misread).values(), default=0) >= _A_WAY


def _culprits(run: FollowedRun) -> Iterator[_Culprit]:
    for suspect in misread(run):
        yield _Culprit(suspect.site.kernel, suspect.name, suspect.reason, places(suspect.lines)[-1])
    for finding in run.flow.memory.findings if run.flow.memory else ():
        if finding.kind == OUTSIDE:
            reason = f"{finding.tensor} is accessed outside its elements"
            yield _Culprit(finding.kernel, finding.tensor, reason, finding.place)
    yield from _short(run.flow)


def _short(flow: Flow) -> Iterator[_Culprit]:
    """The tensors of which a kernel reaches fewer rows or keys than of the others."""
    reached = defaultdict[tuple[str, str], dict[str, Array]](dict)
    sites: dict[tuple[str, str], Site] = {}
    for (number, letter), here in flow.reached.items():
        source = flow.sources[number]
        of_kernel = reached[source.site.kernel, letter]
        of_kernel[source.tensor] = of_kernel.get(source.tensor, here) | here
        sites.setdefault((source.site.kernel, source.tensor), source.site)
    for (kernel, letter), of_kernel in reached.items():
        most = np.logical_or.reduce(list(of_kernel.values()))
        for tensor, here in of_kernel.items():
            if (missing := np.flatnonzero(most & ~here)).size:
                reason = f"{tensor} is not accessed at {AXIS_WORDS[letter]} {missing[0]}, as others are"
                site = sites[kernel, tensor]
                lines = blamed(site, [other for other in sites.values() if other is not site])
                yield _Culprit(kernel, tensor, reason, places(lines)[-1])


def _warned(
    experiment: Experiment, assigned: Assigned, culprits: Sequence[_Culprit], with_case: str
) -> Iterator[WarningNote]:
    """A warning for each tensor: what `lint` says of its strides where they were other numbers, else what was seen."""
    read = gathered("lint", findings_of, experiment.target, experiment.case) if assigned else []
    for tensor in dict.fromkeys(one.tensor for one in culprits):
        of_tensor = [one for one in culprits if one.tensor == tensor]
        found = [one for one in read if one.tensor == tensor]
        reason = found[0].sentence if found else of_tensor[0].reason
        first, *more = [one.where for one in found] or [_where(one) for one in of_tensor]
        others = sorted({one.line for one in more if one.line != first.line})
        likewise = f" (likewise at line {in_words(spans(others), 4)})" if others else ""
        words = f"right only by coincidence: {reason}{likewise}; it is wrong with {with_case}"
        yield WarningNote(COINCIDENCE, f"{tensor} in {first.kernel}", words, (), first.file, first.line, first.code)


def _where(culprit: _Culprit) -> Where:
    return Where(culprit.line.file, culprit.line.line, culprit.line.code.strip(), kernel=culprit.kernel)
