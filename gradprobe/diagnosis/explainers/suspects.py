"""Suspects: the operations of a failing run that go wrong although what they work on is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ...model.mechanisms import gathered
from ..follow import FollowedRun
from .crossed import crossed
from .elsewhere import masked_elsewhere
from .first_wrong import wrong_values
from .misread import misread, transposed
from .programs import beyond_heads
from .stores import not_numbers, other_factors
from .sums import nothing_summed, pairs
from .suspect import Suspect
from .unmade import unmade
from .unstored import never_stored

# By mechanism, what explains a run.
Explainer = tuple[str, Callable[[FollowedRun], Iterator[Suspect]]]
# In the order in which they are asked, until one of them speaks.
OF_ACCESSES: tuple[Explainer, ...] = (
    ("dataflow/misread", transposed),  # a tile that lies across disagrees in every index, and so would be misread
    ("dataflow/crossed", crossed),  # the load of a vector would be accused that gets its axis later
    ("dataflow/misread", misread),  # of other elements everything is wrong, and each operation right
    ("dataflow/elsewhere", masked_elsewhere),  # the mask would be accused, which is right for what lies there
    ("dataflow/unstored", never_stored),  # what is stored nowhere has no value that could be wrong
)
OF_LOSSES: tuple[Explainer, ...] = (
    ("dataflow/unmade", unmade),  # what was lost on the way is compared with nothing
    ("dataflow/stores", not_numbers),  # everything that NaN enters is wrong
)
# Of what is left, all that they say: a value that is wrong by itself, and a result with another constant.
VALUES: Explainer = ("dataflow/values", wrong_values)
CONSTANTS: Explainer = ("dataflow/stores", other_factors)
# Asked at last, since host code may multiply yet what it makes a result of.
OF_HOST: Explainer = ("dataflow/stores", partial(other_factors, is_of_host=True))


def suspects(run: FollowedRun, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself on the way to the results that are wrong, the first first."""
    run = replace(run, wrong=tuple(wrong))
    of_grids = _asked(run, ("dataflow/programs", beyond_heads))
    kernels = {one.site.kernel for one in of_grids}
    # Programs that belong to no head misread everything.
    found = [*of_grids, *(one for one in _first_of(run, OF_ACCESSES) if one.site.kernel not in kernels)]
    if not found and "O" in wrong and len(wrong) > 1 and (of_forward := suspects(run, ["O"])):
        # Gradients are made of O: what they show is no more than its doing, but for what is right and never masked.
        known, values = {one.site for one in of_forward}, _asked(run, VALUES)
        return [*of_forward, *(one for one in values if one.is_open and one.site not in known)]
    found = found or _first_of(run, OF_LOSSES) or _asked(run, VALUES) + _asked(run, CONSTANTS)
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
