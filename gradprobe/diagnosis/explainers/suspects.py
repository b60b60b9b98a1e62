"""Suspects: the operations of a failing run that go wrong although what they work on is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ...model.mechanisms import gathered
from ..follow import FollowedRun
from .misread import masked_elsewhere, misread, transposed
from .sums import never_stored, nothing_summed, pairs
from .suspect import Suspect
from .values import not_numbers, other_factors, wrong_values

# By mechanism, what explains a run.
Explainer = tuple[str, Callable[[FollowedRun], Iterator[Suspect]]]
# In the order in which they are asked, until one of them speaks.
OF_ACCESSES: tuple[Explainer, ...] = (
    ("dataflow/misread", transposed),  # a tile that lies across disagrees in every index, and so would be misread
    ("dataflow/misread", misread),  # of other elements everything is wrong, and each operation right
    ("dataflow/misread", masked_elsewhere),  # the mask would be accused, which is right for what lies there
    ("dataflow/sums", never_stored),  # what is stored nowhere has no value that could be wrong
)
OF_LOSSES: tuple[Explainer, ...] = (
    ("dataflow/values", not_numbers),  # everything that NaN enters is wrong
)
# Of what is left, all that they say: a value that is wrong by itself, and a result with another constant.
VALUES: Explainer = ("dataflow/values", wrong_values)
CONSTANTS: Explainer = ("dataflow/values", other_factors)
# Asked at last, since host code may multiply yet what it makes a result of.
OF_HOST: Explainer = ("dataflow/values", partial(other_factors, is_of_host=True))


def suspects(run: FollowedRun, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself on the way to the results that are wrong, the first first."""
    run = replace(run, wrong=tuple(wrong))
    # Of other elements, or of none, no pair is known to lack.
    if found := _first_of(run, OF_ACCESSES):
        return found
    if "O" in wrong and len(wrong) > 1 and (of_forward := suspects(run, ["O"])):
        # Gradients are made of O: what they show is no more than its doing, but for what is right and never masked.
        known, values = {one.site for one in of_forward}, _asked(run, VALUES)
        return [*of_forward, *(one for one in values if one.is_open and one.site not in known)]
    found = _first_of(run, OF_LOSSES) or _asked(run, VALUES) + _asked(run, CONSTANTS)
    left_out = _asked(run, ("dataflow/sums", pairs))
    if any(one.is_sure for one in found):
        # What is left out beside another cause that is sure is not, as long as no hypothesis predicts it.
        found += [replace(one, is_sure=False) for one in left_out]
    else:
        found += left_out + _asked(run, ("dataflow/sums", nothing_summed))
    found = found or _asked(run, OF_HOST)
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda one: (not one.is_sure, not one.name))


def _first_of(run: FollowedRun, explainers: Sequence[Explainer]) -> list[Suspect]:
    return next(filter(None, (_asked(run, one) for one in explainers)), [])


def _asked(run: FollowedRun, explainer: Explainer) -> list[Suspect]:
    name, explain = explainer
    return gathered(name, explain, run)
