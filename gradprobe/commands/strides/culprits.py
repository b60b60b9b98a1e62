"""Culprits: what failing layouts have in common.

A stride that spoils the results is misread where it differs from another one. Two strides that each spoil the results
alone, but not when both are longer, are one mix-up. Each claim is tested against the layouts that were tried. Wide
strides are equal for all tensors, so that no mix-up shows, with room to make any of them longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ...inputs.history import CheckRequest
from ...inputs.placement import Placement
from ...inputs.tensor_layouts import VECTOR, VECTORS
from ...model.assignment import spanned
from ...model.case import Case
from ...model.intermediates import KINDS
from ...model.report import Culprit
from ...pipeline.resolve import resolve_problem
from .bench import Bench
from .trials import ALL_AXES, CONTIGUOUS, WITHIN, LayoutTrial, any_of, trials_of

Stride = tuple[str, int]
"""(tensor, axis)."""
Strides = Mapping[str, tuple[int, ...]]
"""The strides of every tensor, by name."""
MIX_UP, STRIDE = "mix-up", "stride"
# By how much a stride is made longer. All but the innermost keep rows aligned for vector loads.
_MORE = {"d": 1, "m": VECTOR, "h": 2 * VECTOR, "b": 3 * VECTOR}
# The kinds of any four axes; the innermost of a bias are keys.
_FOUR = "bhmd"
# How many tensors may be misread by themselves beside a mix-up of others. Each further one costs many more runs.
_MOST_APART = 2


class WideTensors:
    """The tensors of a case with wide strides. Vectors of parameters stay contiguous."""

    def __init__(self, case: Case, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes, self._kinds = dict[str, tuple[int, ...]](), dict[str, str]()
        for name, shape in shapes.items():
            if (axes := case.input_axes(name)) and name not in VECTORS:
                self.shapes[name] = shape
                is_four = len(shape) == len(_FOUR)
                self._kinds[name] = _FOUR if is_four else "".join(map(KINDS.__getitem__, axes))
        self._strides = self._common()

    def _common(self) -> dict[str, int]:
        """A stride for each kind of axis, greater than what the kinds inside it span when they are longer."""
        most = dict.fromkeys("dmhb", 1)
        for name, shape in self.shapes.items():
            for kind, size in zip(self._kinds[name], shape, strict=True):
                most[kind] = max(most[kind], size)
        found, span = dict[str, int](), 1
        for kind, size in most.items():
            found[kind] = span
            reach = spanned((size,), (span + _MORE[kind],)) + span
            span = reach // VECTOR * VECTOR + VECTOR
        return found

    def strides(self) -> Iterator[Stride]:
        """Every stride of an axis longer than 1; other strides address nothing."""
        for name in self.shapes:
            yield from ((name, axis) for axis in self.axes(name))

    def axes(self, name: str) -> list[int]:
        return [axis for axis, size in enumerate(self.shapes[name]) if size > 1]

    def kind(self, stride: Stride) -> str:
        """The kind of a stride. It may be mixed up with strides of the same kind."""
        return self._kinds[stride[0]][stride[1]]

    def placements(
        self, longer: Collection[Stride] = (), apart: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Wide strides for every tensor that is not set apart, with some strides longer."""
        found = dict[str, Placement]()
        for name, kinds in self._kinds.items():
            strides = [
                self._strides[kind] + _MORE[kind] * ((name, axis) in longer)
                for axis, kind in enumerate(kinds)
            ]
            if name not in apart:
                found[name] = Placement(tuple(strides), 0, f"of {name}")
        return found

    def with_a_gap(self, name: str, axis: int) -> Placement:
        """Contiguous strides with a gap between the steps along one axis."""
        shape, strides, span = self.shapes[name], list[int](), 1
        for at in reversed(range(len(shape))):
            strides.append(span + VECTOR * (at == axis))
            span = strides[-1] * shape[at]
        return Placement(tuple(reversed(strides)), 0, f"of {name}")


@dataclass(frozen=True)
class Claim:
    """A condition under which a target is wrong."""

    kind: str
    """MIX_UP (strides that must be equal), STRIDE (one that must be as its like) or WITHIN (within one tensor)."""
    strides: tuple[Stride, ...]
    """(tensor, axis), or (tensor, ALL_AXES)."""
    words: str
    holds: Callable[[Strides], bool]


def _differ(group: Sequence[Stride]) -> Claim:
    """These strides of several tensors are not all equal.

    Names the last tensor first, since a kernel usually takes an earlier tensor's stride for a later one's.
    """
    *others, last = reversed([f"{name}.stride({axis})" for name, axis in group])
    words = f"{others[0]} != {last}"
    if len(others) > 1:
        words = f"{', '.join(others)} and {last} are not all equal"

    def holds(of: Strides) -> bool:
        return len({of[name][axis] for name, axis in group}) > 1

    return Claim(MIX_UP, tuple(group), words, holds)


def _unlike(stride: Stride, like: Sequence[Stride]) -> Claim:
    """One stride differs from its counterparts in other tensors."""
    name, axis = stride
    words = f"{name}.stride({axis}) is not what it is in other tensors"

    def holds(of: Strides) -> bool:
        return any(of[name][axis] != of[other][at] for other, at in like)

    return Claim(STRIDE, (stride,), words, holds)


def _not_dense(name: str, axes: Sequence[int], shape: tuple[int, ...]) -> Claim:
    """The stride of an axis is not the span of the axis inside it, or the last stride is not 1."""
    words, last = list[str](), len(shape) - 1
    for axis in axes:
        inner = f"{name}.shape[{axis + 1}] * {name}.stride({axis + 1})"
        words.append(f"{name}.stride({axis}) != {'1' if axis == last else inner}")

    def holds(of: Strides) -> bool:
        inner = zip(shape[1:], of[name][1:], strict=True)
        spans = [*(size * step for size, step in inner), 1]
        return any(of[name][axis] != spans[axis] for axis in axes)

    return Claim(WITHIN, tuple((name, axis) for axis in axes), any_of(words), holds)


def culprits(
    bench: Bench, failing: Collection[LayoutTrial], right: Collection[LayoutTrial] = ()
) -> tuple[Culprit, ...]:
    """Why trials fail; nothing where they fail in every layout.

    Args:
        right: trials that are right although every kernel saw their strides.
    """
    if any(trial.layout == CONTIGUOUS for trial in failing):
        return ()
    claims = _StrideSearch(bench).claims()
    wrong, fine = ([bench.strides(trial) for trial in trials] for trials in (failing, right))
    found = list[Culprit]()
    for claim in claims:
        is_sole = len(claims) == 1 and all(map(claim.holds, wrong))
        when = "wrong only when" if is_sole else "wrong when"
        if any(map(claim.holds, fine)):
            when = "wrong in some layouts when"
        found.append(Culprit(claim.kind, claim.strides, f"{when} {claim.words}"))
    return tuple(found)


class _StrideSearch:
    """Runs a target with one stride after another made longer."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._wide = WideTensors(bench.experiment.case, bench.shapes())
        self._apart: Collection[str] = ()
        """The tensors that stay contiguous."""

    def claims(self) -> list[Claim]:
        places = self._wide.placements()
        if not self._bench.is_wrong(places):
            return self._mixed_up()
        alone = [name for name, place in places.items() if self._bench.is_wrong({name: place})]
        for count in range(1, _MOST_APART + 1):
            for apart in combinations(alone, count):
                if not self._bench.is_wrong(self._wide.placements(apart=apart)):
                    self._apart = apart
                    return [*map(self._assumed, apart), *self._mixed_up()]
        return list(map(self._assumed, alone))

    def _assumed(self, name: str) -> Claim:
        """What the target assumes of one tensor's strides, while the other tensors are contiguous."""
        shape, axes, broken = self._wide.shapes[name], self._wide.axes(name), list[int]()
        for axis in axes:
            if self._bench.is_wrong({name: self._wide.with_a_gap(name, axis)}):
                broken.append(axis)
        if broken not in ([], axes):
            return _not_dense(name, broken, shape)
        holds = _not_dense(name, axes, shape).holds
        return Claim(WITHIN, ((name, ALL_AXES),), f"{name} is not contiguous", holds)

    def _mixed_up(self) -> list[Claim]:
        """The mix-ups of strides, while the tensors set apart are contiguous."""
        strides = [stride for stride in self._wide.strides() if stride[0] not in self._apart]
        spoiling, claims = list[Stride](), list[Claim]()
        for stride in strides:
            places = self._wide.placements([stride], self._apart)
            if self._bench.is_spoilt(places, stride[0]):
                spoiling.append(stride)
        while spoiling:
            group = self._mixed_with(*spoiling)
            spoiling = [stride for stride in spoiling if stride not in group]
            claims.append(_differ(group) if len(group) > 1 else self._single(group[0], strides))
        return claims

    def _mixed_with(self, first: Stride, *others: Stride) -> tuple[Stride, ...]:
        """The fewest strides with the first among them that spoil nothing when all are longer; else the first alone."""
        like = [other for other in others if self._wide.kind(other) == self._wide.kind(first)]
        for count in range(1, len(like) + 1):
            for some in combinations(like, count):
                places = self._wide.placements([first, *some], self._apart)
                if not self._bench.is_wrong(places):
                    return (first, *some)
        return (first,)

    def _single(self, stride: Stride, strides: Sequence[Stride]) -> Claim:
        """The claim about one stride that is misread alone. An innermost stride is assumed to be 1."""
        name, axis = stride
        kind = self._wide.kind(stride)
        if kind == "d":
            return _not_dense(name, [axis], self._wide.shapes[name])
        return _unlike(stride, [other for other in strides if self._wide.kind(other) == kind])


class Blamer:
    """`Blamer(request)((fast, failing, right))` gives the culprits of the trials of these titles."""

    def __init__(self, request: CheckRequest) -> None:
        import torch  # noqa: F401 - outside the time limit

        self._request = request

    def __call__(self, asked: tuple[bool, list[str], list[str]]) -> tuple[Culprit, ...]:
        bench, (fast, *titles) = Bench(resolve_problem(self._request)), asked
        trials = trials_of(bench.shapes(), fast=fast)
        failing, right = ([trial for trial in trials if trial.title in those] for those in titles)
        return culprits(bench, failing, right)
