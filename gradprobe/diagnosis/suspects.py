"""Suspects: the operations of a failing run that go wrong although what they work on is right."""

from __future__ import annotations

from collections.abc import Sequence

from .first_wrong import wrong_values
from .follow import Followed
from .misread import misread, transposed
from .stores import not_numbers, other_factors
from .sums import nothing_summed, pairs
from .suspect import Suspect


def suspects(run: Followed, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself, the first first.

    Args:
        wrong: the results that are wrong.
    """
    found = [*transposed(run.flow)] or [*misread(run.flow)] or [*not_numbers(run, wrong)]
    if not found:
        found = [*wrong_values(run, wrong), *other_factors(run, wrong)]
    if not any(one.is_sure for one in found):
        found += [*pairs(run, wrong), *nothing_summed(run, wrong)]
    found = found or [*other_factors(run, wrong, of_host=True)]
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda one: (not one.is_sure, not one.name))
