"""Culprits: what failing layouts have in common. Hazards: what shows only with offsets beyond 2^31 or vectors.

A stride that spoils the results is misread where it differs from another one. Two strides that each spoil the results
alone, but not when both are longer, are one mix-up. Each claim is tested against the layouts that were tried. Wide
strides are equal for all tensors, so that no mix-up shows, with room to make any of them longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ...inputs.placement import Placement
from ...inputs.tensor_layouts import VECTOR, VECTORS
from ...model.assignment import TENSORS, spanned
from ...model.case import Case
from ...model.intermediates import KINDS
from ...model.memory_finding import HUGE, OUTSIDE, WarningNote
from ...model.report import Culprit
from .trials import CONTIGUOUS, LayoutTrial, TrialResult

if TYPE_CHECKING:
    from .bench import Bench

Stride = tuple[str, int]
"""(tensor, axis)."""

# By how much a stride is made longer. All but the innermost keep rows aligned for vector loads.
_MORE = {"d": 1, "m": VECTOR, "h": 2 * VECTOR, "b": 3 * VECTOR}
_GAP = VECTOR
# The kinds of any four axes; the innermost of a bias are keys.
_FOUR = "bhmd"


class WideTensors:
    """The tensors of a case with wide strides. Vectors of parameters stay contiguous."""

    def __init__(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> None:
        moved = (name for name in shapes if case.input_axes(name) and name not in VECTORS)
        self._shapes = {name: shapes[name] for name in moved}
        self._kinds = {
            name: _kinds(case.input_axes(name), len(shape))
            for name, shape in self._shapes.items()
        }
        self._strides = self._common()

    def strides(self) -> Iterator[Stride]:
        """Every stride of an axis longer than 1; other strides address nothing."""
        for name, shape in self._shapes.items():
            yield from ((name, axis) for axis, size in enumerate(shape) if size > 1)

    def kind(self, stride: Stride) -> str:
        """The kind of a stride. It may be mixed up with strides of the same kind."""
        name, axis = stride
        return self._kinds[name][axis]

    def placements(
        self, longer: Collection[Stride] = (), apart: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Wide strides for every tensor that is not set apart, with some strides longer."""
        return {
            name: Placement(
                tuple(self._stride(name, axis, longer) for axis in range(len(shape))),
                0,
                f"of {name}",
            )
            for name, shape in self._shapes.items()
            if name not in apart
        }

    def with_a_gap(self, name: str, axis: int) -> Placement:
        """Contiguous strides with a gap between the steps along one axis."""
        shape, strides, span = self._shapes[name], [], 1
        for at in reversed(range(len(shape))):
            strides.append(span + (_GAP if at == axis else 0))
            span = strides[-1] * shape[at]
        return Placement(tuple(reversed(strides)), 0, f"of {name}")

    def _stride(self, name: str, axis: int, longer: Collection[Stride]) -> int:
        kind = self._kinds[name][axis]
        return self._strides[kind] + (_MORE[kind] if (name, axis) in longer else 0)

    def _common(self) -> dict[str, int]:
        """A stride for each kind of axis, greater than what the kinds inside it span when they are longer."""
        most = dict.fromkeys("dmhb", 1)
        for name, shape in self._shapes.items():
            for kind, size in zip(self._kinds[name], shape, strict=True):
                most[kind] = max(most[kind], size)
        found, inner, span = {}, "dmhb", 1
        for kind in inner:
            found[kind] = span
            reach = spanned((most[kind],), (found[kind] + _MORE[kind],)) + found[kind]
            span = reach // VECTOR * VECTOR + VECTOR
        return found


def _kinds(axes: str, count: int) -> str:
    return _FOUR if count == len(_FOUR) else "".join(KINDS[letter] for letter in axes)


Strides = Mapping[str, tuple[int, ...]]
"""The strides of every tensor, by name."""
MIX_UP, STRIDE, WITHIN = "mix-up", "stride", "contiguous"
ALL_AXES = -1


@dataclass(frozen=True)
class Claim:
    """A condition under which a target is wrong."""

    kind: str
    """MIX_UP (strides that must be equal), STRIDE (one that must be as its like) or WITHIN (within one tensor)."""
    strides: tuple[Stride, ...]
    """(tensor, axis), or (tensor, ALL_AXES)."""
    words: str
    holds: Callable[[Strides], bool]


def differ(group: Sequence[Stride]) -> Claim:
    """Claims that these strides of several tensors are not all equal."""
    names = [f"{name}.stride({axis})" for name, axis in group]
    return Claim(
        MIX_UP,
        tuple(group),
        _unequal(names),
        lambda of: len({of[name][axis] for name, axis in group}) > 1,
    )


def tensors_differ(names: Sequence[str], axes: Sequence[int]) -> Claim:
    """Claims that these tensors do not all have the same strides along these axes."""
    strides = tuple((name, ALL_AXES) for name in names)
    words = _unequal([f"{name}.stride()" for name in names])
    return Claim(
        MIX_UP,
        strides,
        words,
        lambda of: len({tuple(of[name][axis] for axis in axes) for name in names}) > 1,
    )


def unlike(stride: Stride, like: Sequence[Stride]) -> Claim:
    """Claims that one stride differs from its counterparts in other tensors."""
    name, axis = stride
    words = f"{name}.stride({axis}) is not what it is in other tensors"
    return Claim(
        STRIDE,
        (stride,),
        words,
        lambda of: any(of[name][axis] != of[other][at] for other, at in like),
    )


def not_dense(name: str, axes: Sequence[int], shape: tuple[int, ...]) -> Claim:
    """Claims that the stride of an axis is not the span of the axis inside it, or that the last stride is not 1."""

    def claim(axis: int) -> str:
        inner = f"{name}.shape[{axis + 1}] * {name}.stride({axis + 1})"
        return f"{name}.stride({axis}) != {'1' if axis == len(shape) - 1 else inner}"

    def holds(strides: Strides) -> bool:
        spans = [size * step for size, step in zip(shape[1:], strides[name][1:], strict=True)] + [
            1
        ]
        return any(strides[name][axis] != spans[axis] for axis in axes)

    return Claim(
        WITHIN,
        tuple((name, axis) for axis in axes),
        any_of([claim(axis) for axis in axes]),
        holds,
    )


def not_contiguous(name: str, shape: tuple[int, ...]) -> Claim:
    """Claims that one tensor is not contiguous."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    holds = not_dense(name, axes, shape).holds
    return Claim(WITHIN, ((name, ALL_AXES),), f"{name} is not contiguous", holds)


def any_of(names: Sequence[str]) -> str:
    """ "q", "q or k", "q, k or v"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unequal(names: Sequence[str]) -> str:
    """Names the last tensor first, since a kernel usually takes an earlier tensor's stride for a later one's."""
    *others, last = reversed(names)
    return (
        f"{others[0]} != {last}"
        if len(names) == 2
        else f"{', '.join(others)} and {last} are not all equal"
    )


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
