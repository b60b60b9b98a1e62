"""Culprits: what failing layouts have in common. Hazards: what shows only with offsets beyond 2^31 or vectors.

A stride that spoils the results is misread where it differs from another one. Two strides that each spoil the results
alone, but not when both are longer, are one mix-up. Each claim is tested against the layouts that were tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ...model.assignment import TENSORS
from ...model.memory_finding import HUGE, OUTSIDE, WarningNote
from ...model.report import Culprit
from .trials import CONTIGUOUS, LayoutTrial, TrialResult
from .wide import (
    ALL_AXES,
    MIX_UP,
    WITHIN,
    Claim,
    Stride,
    Strides,
    WideTensors,
    any_of,
    differ,
    not_contiguous,
    not_dense,
    tensors_differ,
    unlike,
)

if TYPE_CHECKING:
    from .bench import Bench

# How many tensors may be misread by themselves beside a mix-up of others. Each further one costs many more runs.
_MOST_APART = 2


def culprits(
    bench: Bench, failing: Collection[LayoutTrial], right: Collection[LayoutTrial] = ()
) -> tuple[Culprit, ...]:
    """Why trials fail; nothing where they fail in every layout.

    Args:
        right: trials that are right although every kernel saw their strides.
    """
    if any(trial.layout == CONTIGUOUS for trial in failing):
        return ()
    claims = _claims(bench)
    wrong, fine = ([bench.strides(trial) for trial in trials] for trials in (failing, right))
    return tuple(_said(claim, wrong, fine, is_sole=len(claims) == 1) for claim in claims)


def _said(
    claim: Claim, wrong: Sequence[Strides], fine: Sequence[Strides], *, is_sole: bool
) -> Culprit:
    """The claim in words that agree with every layout that was tried."""
    when = "wrong only when" if is_sole and all(map(claim.holds, wrong)) else "wrong when"
    if any(map(claim.holds, fine)):
        when = "wrong in some layouts when"
    return Culprit(claim.kind, claim.strides, f"{when} {claim.words}")


def _claims(bench: Bench) -> list[Claim]:
    wide = WideTensors(bench.experiment.case, bench.shapes())
    if not bench.is_wrong(wide.placements()):
        return _mixed_up(bench, wide)
    alone = [name for name, place in wide.placements().items() if bench.is_wrong({name: place})]
    for count in range(1, _MOST_APART + 1):
        for apart in combinations(alone, count):
            if not bench.is_wrong(wide.placements(apart=apart)):
                return [
                    *(_assumed(bench, wide, name) for name in apart),
                    *_mixed_up(bench, wide, apart),
                ]
    return [_assumed(bench, wide, name) for name in alone]


def _assumed(bench: Bench, wide: WideTensors, name: str) -> Claim:
    """What the target assumes of one tensor's strides, while the other tensors are contiguous."""
    shape = bench.shapes()[name]
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    broken = [axis for axis in axes if bench.is_wrong({name: wide.with_a_gap(name, axis)})]
    return not_contiguous(name, shape) if broken in ([], axes) else not_dense(name, broken, shape)


def _mixed_up(bench: Bench, wide: WideTensors, apart: Collection[str] = ()) -> list[Claim]:
    """The mix-ups of strides, while the tensors set apart are contiguous."""
    strides = [stride for stride in wide.strides() if stride[0] not in apart]
    spoiling = [
        stride
        for stride in strides
        if bench.is_spoilt(wide.placements([stride], apart), stride[0])
    ]
    claims: list[Claim] = []
    while spoiling:
        group = _mixed_with(spoiling, bench, wide, apart)
        spoiling = [stride for stride in spoiling if stride not in group]
        claims.append(
            differ(group) if len(group) > 1 else _single(group[0], strides, bench, wide)
        )
    return list(_merged(claims, strides))


def _mixed_with(
    spoiling: Sequence[Stride], bench: Bench, wide: WideTensors, apart: Collection[str]
) -> tuple[Stride, ...]:
    """The fewest strides with the first among them that spoil nothing when all are longer; else the first alone."""
    first, *others = spoiling
    like = [other for other in others if wide.kind(other) == wide.kind(first)]
    for count in range(1, len(like) + 1):
        for some in combinations(like, count):
            if not bench.is_wrong(wide.placements([first, *some], apart)):
                return (first, *some)
    return (first,)


def _single(stride: Stride, strides: Sequence[Stride], bench: Bench, wide: WideTensors) -> Claim:
    """The claim about one stride that is misread alone. An innermost stride is assumed to be 1."""
    name, axis = stride
    if wide.kind(stride) == "d":
        return not_dense(name, [axis], bench.shapes()[name])
    return unlike(stride, [other for other in strides if wide.kind(other) == wide.kind(stride)])


def _merged(claims: Sequence[Claim], strides: Sequence[Stride]) -> Iterator[Claim]:
    """The claims, where one about whole tensors replaces those that mix up the same tensors along every axis."""
    groups: dict[tuple[str, ...], list[Claim]] = {}
    for claim in claims:
        names = tuple(name for name, _ in claim.strides)
        groups.setdefault(
            names if claim.kind == MIX_UP else (*names, str(claim.strides)), []
        ).append(claim)
    for names, group in groups.items():
        axes = [axis for name, axis in strides if name == names[0]]
        mixed = [{axis for _, axis in claim.strides} for claim in group]
        whole = len(group) > 1 and mixed == [{axis} for axis in axes]
        yield from [tensors_differ(names, axes)] if whole else group


OVERFLOW = "overflow"


@dataclass(frozen=True)
class Hazard:
    """What several trials show."""

    kind: str
    """HUGE or VECTOR."""
    severity: str
    culprit: Culprit
    results: tuple[TrialResult, ...]
    """Those that fail by it alone."""

    @property
    def warned(self) -> WarningNote:
        about = " ".join(name for name, _ in self.culprit.strides)
        layouts = tuple(result.trial.title for result in self.results)
        return WarningNote(self.kind, about, self.culprit.words, layouts)


def hazards(results: Sequence[TrialResult]) -> tuple[Hazard, ...]:
    """The hazards that results came to: offsets are one, and so is each vector."""
    groups: dict[tuple[str, str, str], list[TrialResult]] = {}
    for result in results:
        if result.hazard:
            about = "" if result.hazard == HUGE else result.trial.row
            groups.setdefault((result.hazard, about, result.severity), []).append(result)
    return tuple(
        Hazard(
            kind, severity, _overflow(found) if kind == HUGE else _strided(about), tuple(found)
        )
        for (kind, about, severity), found in groups.items()
    )


def _overflow(results: Sequence[TrialResult]) -> Culprit:
    """The tensors that fail alone; or those outside which an access was seen."""
    alone = [result.trial.row for result in results if result.trial.row != "all"]
    seen = [
        finding.tensor
        for result in results
        for finding in result.memory
        if finding.kind == OUTSIDE
    ]
    names = sorted(set(alone or seen) & set(TENSORS), key=TENSORS.index)
    into = f" into {any_of(names)}" if names else ""
    words = f"wrong once an offset{into} passes 2^31 elements: an index is held in 32 bits"
    return Culprit(OVERFLOW, tuple((name, ALL_AXES) for name in names), words)


def _strided(name: str) -> Culprit:
    return Culprit(
        WITHIN, ((name, 0),), f"wrong when {name}.stride(0) != 1: it is taken for contiguous"
    )
