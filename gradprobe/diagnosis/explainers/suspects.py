"""Suspects: the operations of a failing run that go wrong although what they work on is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ...model.intermediates import SUBEXPRESSIONS
from ...model.mechanisms import gathered
from ..follow import FollowedRun
from .misread import masked_elsewhere, misread, transposed
from .sums import never_stored, nothing_summed, pairs
from .suspect import Suspect
from .values import not_numbers, other_factors, wrong_values


def of_forward(run: FollowedRun) -> Iterator[Suspect]:
    """What leads to a wrong O; of its gradients only what is right and never masked, which is no doing of O."""
    if "O" in run.wrong and len(run.wrong) > 1 and (found := suspects(run, ["O"])):
        known = {one.site for one in found}
        values = gathered("dataflow/values", wrong_values, run)
        yield from (*found, *(one for one in values if one.is_open and one.site not in known))


# When one is asked, and whether any other is asked once it has spoken.
ALONE, FIRST, BESIDE, UNSURE = "alone", "where none has spoken", "always", "where none is sure"
EXPLAINERS: tuple[tuple[str, str, Callable[[FollowedRun], Iterator[Suspect]]], ...] = (
    (ALONE, "dataflow/misread", transposed),  # a tile that lies across disagrees in every index: it would be misread
    (ALONE, "dataflow/misread", misread),  # of other elements everything is wrong, and each operation right
    (ALONE, "dataflow/misread", masked_elsewhere),  # the mask would be accused, which is right for what lies there
    (ALONE, "dataflow/sums", never_stored),  # what is stored nowhere has no value that could be wrong
    (ALONE, "dataflow", of_forward),  # gradients are made of O: what they show is its doing
    (FIRST, "dataflow/values", not_numbers),  # everything that NaN enters is wrong
    (FIRST, "dataflow/values", wrong_values),  # a value that is wrong by itself
    (BESIDE, "dataflow/values", other_factors),  # and a result with another constant, which no value shows
    (
        BESIDE,
        "dataflow/sums",
        pairs,
    ),  # what is left out of a sum makes no value in it wrong
    (UNSURE, "dataflow/sums", nothing_summed),  # where nothing at all is summed, nothing else can be seen
    (FIRST, "dataflow/values", partial(other_factors, is_of_host=True)),  # host code may multiply yet what it makes
)
"""What explains a run, by mechanism, in the order in which they are asked."""

# Running maxima and sums are no more of a name than none: their steps are wrong together.
_UNTOLD = {"", *(row.name for row in SUBEXPRESSIONS if row.into == ("LSE", "O"))}


def suspects(run: FollowedRun, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself on the way to the results that are wrong, the first first."""
    run, found = replace(run, wrong=tuple(wrong)), list[Suspect]()
    for when, name, explain in EXPLAINERS:
        is_sure = any(one.is_sure for one in found)
        if (found and when == FIRST) or (is_sure and when == UNSURE):
            continue
        new = gathered(name, explain, run)
        # What is left out beside another cause that is sure is not, as long as no hypothesis predicts it.
        found += [replace(one, is_sure=False) for one in new] if is_sure and explain is pairs else new
        if new and when == ALONE:
            return new
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda one: (not one.is_sure, one.name in _UNTOLD))
