"""At which rank, and in which step of a ring, a sharded target goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..diagnosis.behaviour import observed_in
from ..diagnosis.causes import of_the_formula
from ..diagnosis.smaller import MOST_SCORES
from ..diagnosis.why import Reasons
from ..faults.hypothesis import WrongRun
from ..model.failures import fault_words
from ..model.mechanisms import door
from ..model.number import listed
from ..model.report import NAMED, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun, Steps
from ..probing.experiment import Experiment
from .blocks import KEYS
from .shards import Shards, division, ranks_in_words
from .steps import POSITIONS, ShardExplanation, explanations

# Scores of one head beyond which the blocks of a problem are not tried on a CPU, and on a GPU.
_MOST, _MOST_ON_GPU = 1 << 22, 1 << 26
# What lacks of gradients of keys alone is a rank's part of a sum.
_OF_SUMS = {
    "missing-step": "of {names} in the {shards} the part of {ranks} is missing",
    "twice": "of {names} in the {shards} the part of {ranks} is counted twice",
}


_NOTHING: tuple[Reasons, Steps] = (Reasons(), {})


@door("ranks", lambda *args: _NOTHING)
def reasons_on_ranks(experiment: Experiment, runs: Sequence[LayoutRun]) -> tuple[Reasons, Steps]:
    """Why runs with a wrong element went wrong. What goes wrong in here is told, and no verdict depends on it."""
    failing = [
        run for run in runs if run.measured is not None and not run.measured.comparison.matches
    ]
    failing = [run for run in failing if run.is_plain] or failing
    if not failing:
        return _NOTHING
    try:
        return _reasons(observed_in(experiment, failing[0]), division(experiment.case))
    except Exception as error:
        fault = fault_words(error)
        return Reasons(
            (), (f"no reason could be sought, by a fault of gradprobe: {fault}",), sought=False
        ), {}


def _reasons(seen: WrongRun, shards: Shards) -> tuple[Reasons, Steps]:
    why_not = _not_sought(seen, shards)
    found = [] if why_not else explanations(seen, shards)
    told = tuple(_joined(found, shards.ranks))
    named = [one for one in found if one.explained >= NAMED]
    if not named and seen.case.scores <= MOST_SCORES:
        # What all ranks compute alike is a fault of the formula, as anybody's.
        of_formula = of_the_formula(seen)
        told = (*of_formula, *told) if causes_among(of_formula) else (*told, *of_formula)
        why_not = "" if causes_among(told) else why_not
    # What all ranks do alike is no rank's own fault.
    steps = {
        (one.name, one.shard): (one.rank, one.step) for one in named if one.kind != POSITIONS
    }
    left = set(seen.own) - {one.name for one in named}
    facts = _where(seen, shards) if left and not causes_among(told) else ()
    return Reasons(told, (*facts, *filter(None, [why_not])), sought=not why_not), steps


def _not_sought(seen: WrongRun, shards: Shards) -> str:
    x, most = seen.x, _MOST_ON_GPU if seen.x.q.is_cuda else _MOST
    if shards.are_heads:
        return "each rank holds whole heads, so the step cannot be found"
    if x.softcap is not None or x.alibi is not None:
        return "the step can only be found without softcap and ALiBi"
    if x.q.shape[2] * x.k.shape[2] > most:
        return (
            f"a head has more than {most:,} scores, too many to find the step: try a shorter case"
        )
    return ""


def _where(seen: WrongRun, shards: Shards) -> Iterator[str]:
    """In the shards of which ranks each intermediate is wrong by itself."""
    for name in seen.own:
        axes, wrong = seen.case.axes(name), (~seen.right[name]).nonzero()
        at = next((at for at, letter in enumerate(axes) if letter in shards.held), None)
        if at is not None:
            ranks = [
                rank for rank in range(shards.ranks)
                if bool(torch.isin(wrong[:, at], shards.index(axes[at], rank).to(wrong.device)).any())
            ]  # fmt: skip
            yield f"{name} is wrong in the {_shards(ranks)} of {shards.ranks}"


def _shards(ranks: Sequence[int]) -> str:
    return f"shard{'s' if len(ranks) > 1 else ''} of {ranks_in_words(ranks)}"


def _joined(found: Sequence[ShardExplanation], ranks: int) -> Iterator[Diagnosis]:
    """A diagnosis of each fault; of several ranks that do the same, or of several results that show it, one."""
    groups: dict[tuple[str, int | None, str], list[ShardExplanation]] = {}
    for one in found:
        groups.setdefault(one.said, []).append(one)
    for number, group in enumerate(sorted(groups.values(), key=lambda group: -_weight(group))):
        first, own = group[0], sorted({one.rank for one in group})
        explained = _weight(group) / sum(one.wrong for one in group)
        names, shards = (
            list(dict.fromkeys(one.name for one in group)),
            sorted({one.shard for one in group}),
        )
        evidence = f"explains {explained:.0%} of the wrong elements of {listed(names)} in the {_shards(shards)}"
        alone = len(own) == 1 and first.step is not None
        whose = f"rank {(first.rank - (first.step or 0)) % ranks}" if alone else "that step"
        words = _OF_SUMS.get(first.kind, first.words) if set(names) <= set(KEYS) else first.words
        words = words.format(
            whose=whose, ranks=ranks_in_words(own), names=listed(names), shards=_shards(shards)
        )
        words += "" if first.step is None else f", in step {first.step} of the ring"
        also = number > 0 and explained >= NAMED
        yield Diagnosis(
            f"ring/{first.kind}",
            "RING",
            words,
            explained,
            (f"{evidence}; what is right stays right",),
            also=also,
        )


def _weight(group: Sequence[ShardExplanation]) -> float:
    return sum(one.explained * one.wrong for one in group)
