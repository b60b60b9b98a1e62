"""Suspects: the operations of a failing run that go wrong although what they work on is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..model.mechanisms import gathered
from .crossed import crossed
from .elsewhere import masked_elsewhere
from .first_wrong import wrong_values
from .follow import Followed
from .misread import misread, transposed
from .programs import beyond_heads
from .stores import not_numbers, other_factors
from .sums import nothing_summed, pairs
from .suspect import Suspect
from .unmade import unmade
from .unstored import never_stored


def suspects(run: Followed, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself, the first first.

    Args:
        wrong: the results that are wrong.
    """
    of_grids = gathered("dataflow/programs", beyond_heads, run.flow)
    kernels = {one.site.kernel for one in of_grids}
    found = gathered("dataflow/misread", transposed, run.flow) or gathered("dataflow/crossed", crossed, run.flow)
    found = found or gathered("dataflow/misread", misread, run.flow)
    found = found or gathered("dataflow/elsewhere", masked_elsewhere, run)
    found = found or gathered("dataflow/unstored", never_stored, run, wrong)
    # Programs that belong to no head misread everything.
    found = [*of_grids, *(one for one in found if one.site.kernel not in kernels)]
    if not found and "O" in wrong and len(wrong) > 1 and (of_forward := suspects(run, ["O"])):
        # Gradients are made of O: what they show is no more than its doing, but for what is right and never masked.
        known = {one.site for one in of_forward}
        values = gathered("dataflow/values", wrong_values, run, wrong)
        return [*of_forward, *(one for one in values if one.is_open and one.site not in known)]
    found = found or gathered("dataflow/unmade", unmade, run, wrong)
    found = found or gathered("dataflow/stores", not_numbers, run, wrong)
    if not found:
        found = gathered("dataflow/values", wrong_values, run, wrong)
        found += gathered("dataflow/stores", other_factors, run, wrong)
    found += _of_sums(run, wrong, is_explained=any(one.is_sure for one in found))
    found = found or gathered("dataflow/stores", partial(other_factors, of_host=True), run, wrong)
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda one: (not one.is_sure, not one.name))


def _of_sums(run: Followed, wrong: Sequence[str], *, is_explained: bool) -> list[Suspect]:
    """What is left out of sums; beside another cause that is sure it is not, as long as no hypothesis predicts it."""
    if is_explained:
        return [replace(one, is_sure=False) for one in gathered("dataflow/sums", pairs, run, wrong)]
    left_out = gathered("dataflow/sums", pairs, run, wrong)
    return left_out + gathered("dataflow/sums", nothing_summed, run, wrong)
