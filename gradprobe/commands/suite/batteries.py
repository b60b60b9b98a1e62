"""A battery as a plan: cases that expose what others hide, each round planned by what came of those before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.documents import AUTO, BATTERIES, QUICK, RefusedCase
from ...model.failures import UsageFailure, did_you_mean
from .battery import Item, battery, set_by
from .case_factors import factors_of, set_by_factors
from .checking import Setting
from .outcome import CheckOutcome
from .pairs import PairRounds
from .plan import Plan, PlannedCheck
from .takes import described

# Processes that share a GPU: cases are small, and what takes long is to compile and to compare them.
_ON_ONE_GPU = 8
# Checks of one battery, far more than there are.
_MOST = 1_000_000
# The options by which other code is compiled for a kernel; where a tensor lies and how long it is hardly are.
_COMPILED = (
    "dtype", "head_dim", "head_dim_v", "causal", "window", "bias", "softcap", "alibi", "mask", "sinks", "block_m",
)  # fmt: skip


def refuse_unknown_battery(word: str | None) -> None:
    """Does nothing where it is one.

    Raises:
        UsageFailure: --battery has another word.
    """
    if word is not None and word not in BATTERIES:
        known = [name for name in BATTERIES if name != AUTO]
        way_out = did_you_mean(word, known, "") or "alone it is pairs"
        raise UsageFailure(f"--battery takes {' or '.join(known)}, got {word!r}", way_out)


def refuse_set_by_it(word: str, options: Mapping[str, Any]) -> None:
    """Does nothing where no option was given that a case of a battery sets.

    Raises:
        UsageFailure: one was.
    """
    for name, value in options.items():
        if what := _setter(word)(name):
            option = command_line("", "", {name: value}).split(maxsplit=1)[1]
            way_out = "drop it, or check that case without --battery"
            raise UsageFailure(f"{option}: {what} of --battery sets it", way_out)


def _setter(word: str) -> Callable[[str], str]:
    return set_by if word == QUICK else set_by_factors


def battery_plan(word: str, request: CheckRequest, setting: Setting) -> tuple[Plan, Setting]:
    """A battery of a target, and how its checks are made. It imports the target, apart.

    What a case of it sets is left out of the options.

    Args:
        word: one of model.documents.BATTERIES.
    """
    setter = _setter(word)
    request = replace(
        request,
        options={name: value for name, value in request.options.items() if not setter(name)},
    )
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    if takes is None:  # it cannot be imported, is asked once, and that says why
        return _BatteryPlan(request, [Item(1, "contiguous", {}, "")]), setting
    if word == QUICK:
        return _BatteryPlan(request, battery(takes.family, takes.names, takes.required)), setting
    on_gpu, cores = takes.device == "cuda", len(os.sched_getaffinity(0))
    rounds = PairRounds(factors_of(takes, request.options, on_gpu=on_gpu))
    setting = replace(setting, workers=min(cores, _ON_ONE_GPU) if on_gpu else cores)
    return _BatteryPlan(request, next(rounds.rounds), rounds), setting


class _BatteryPlan(Plan):
    """Checks of items, in one round or, of pairs, in several."""

    def __init__(
        self, request: CheckRequest, items: Sequence[Item], pairs: PairRounds | None = None
    ) -> None:
        self._request, self._pairs, self._seen = request, pairs, 0
        untaken = [RefusedCase(item.name, item.why_not) for item in items if item.why_not]
        titles, is_closed = pairs.titles if pairs else (), "recover" not in request.options
        super().__init__(is_own=True, looks_closer=is_closed, untaken=untaken, titles=titles)
        self.checks = self._planned(items)

    def _planned(self, items: Sequence[Item]) -> list[PlannedCheck]:
        taken = {item.name: item for item in items if not item.why_not}
        # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
        without, planned = {"recover": False, **self._request.options}, list[PlannedCheck]()
        for title, item in taken.items():
            number = len(self.checks) + len(planned)
            if (
                self._pairs is not None
            ):  # the case with the fewest properties comes first: that is shown in full
                number += _MOST * len(title.split())
            request = replace(self._request, options={**without, **item.options})
            planned.append(PlannedCheck(title, request, number=number, beyond=item.beyond))
        return planned

    def alike(self, planned: PlannedCheck) -> Hashable:
        if self._pairs is None:
            return None
        return tuple(planned.request.options.get(name) for name in _COMPILED)

    def more(self, made: Sequence[CheckOutcome]) -> Sequence[PlannedCheck]:
        if self._pairs is None or len(made) < len(self.checks):
            return ()
        came, self._seen = {outcome.title: outcome for outcome in made[self._seen :]}, len(made)
        try:
            return self._planned(self._pairs.rounds.send(came))
        except StopIteration:
            self.coverage = self._pairs.coverage
            return ()
