"""A battery: cases that expose what others hide, of which each failure is told once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.documents import AUTO, BATTERIES, PAIRS, QUICK, TRIPLES, RefusedCase, Reports
from ...model.failures import UsageFailure, did_you_mean
from .battery import Item, battery, hinted, set_by
from .battery import weighed as judged
from .case_factors import factors_of, set_by_factors
from .check_table import simplest
from .checked import CheckOutcome, PlannedCheck
from .checking import Setting, check_each
from .combining import CombinationRounds
from .matrix import described
from .several import Further, Several, growing


def refuse_unknown_battery(word: str | None) -> None:
    """Does nothing where it is one.

    Raises:
        UsageFailure: --battery has another word.
    """
    if word is not None and word not in BATTERIES:
        known = [name for name in BATTERIES if name != AUTO]
        way_out = "; ".join([*filter(None, [did_you_mean(word, known, "")]), "alone it chooses by the device"])
        raise UsageFailure(f"--battery takes pairs, triples or quick, got {word!r}", way_out)


def refuse_set_by_it(word: str, options: Mapping[str, Any]) -> None:
    """Does nothing where no option was given that a case of a battery sets.

    Raises:
        UsageFailure: one was.
    """
    for name, value in options.items():
        if what := _by(word)(name):
            option = command_line("", "", {name: value}).split(maxsplit=1)[1]
            raise UsageFailure(
                f"{option}: {what} of --battery sets it", "drop it, or check that case without --battery"
            )


def _by(word: str) -> Callable[[str], str]:
    return set_by if word == QUICK else set_by_factors


@dataclass(frozen=True)
class Begun:
    """What is needed to make the checks of a battery."""

    planned: list[PlannedCheck]
    """The first ones."""
    untaken: list[RefusedCase]
    battery: Battery
    setting: Setting

    def reports(self) -> Reports:
        """All of its checks, folded by cause, with the simplest failing one in full."""
        several = Several(self.planned, self.untaken, False, self.battery)
        checks = check_each(self.planned, self.setting, alike=self.battery.alike)
        for checked in growing(self.planned, map(self.battery.weighed, checks), self.battery):
            several.take(checked)
        failing = simplest(several.checks)
        several.fold(failing, failing and self.battery.in_full(failing))
        if several.groups and self.setting.shrink_budget:
            several.shrink(self.setting)
        return several.so_far


def begun(word: str, request: CheckRequest, setting: Setting) -> Begun:
    """A battery of a target; what a case of it sets is left out of the options. It imports the target, apart.

    Args:
        word: one of model.documents.BATTERIES.
    """
    by = _by(word)
    request = replace(request, options={name: value for name, value in request.options.items() if not by(name)})
    device = str(request.options.get("device", "auto"))
    (takes,) = described([request], device, setting.timeout, isolate=setting.isolate)
    if takes is None:  # it cannot be imported, is asked once, and that says why
        return Battery(request, setting).begin([Item(1, "contiguous", {}, "")], setting)
    if word == QUICK:
        return Battery(request, setting).begin(battery(takes.family, takes.names, takes.required), setting)
    on_gpu = takes.device == "cuda"
    workers = len(os.sched_getaffinity(0))
    setting = replace(setting, workers=min(workers, _ON_ONE_GPU) if on_gpu else workers)
    factors = factors_of(takes, request.options, on_gpu=on_gpu)
    combining = CombinationRounds(factors, BATTERIES[word] or (TRIPLES if on_gpu else PAIRS))
    return _CombinationBattery(request, setting, combining).begin(next(combining.rounds), setting)


# Processes that share a GPU: cases are small, and what takes long is to compile and to compare them.
_ON_ONE_GPU = 8


class Battery(Further):
    """Checks of items, each weighed by what it asks for."""

    titles: Sequence[str] = ()
    """Such as those of further checks may be."""

    def __init__(self, request: CheckRequest, setting: Setting) -> None:
        self._request, self._setting = request, setting
        self._items: dict[str, Item] = {}

    def begin(self, items: Sequence[Item], setting: Setting) -> Begun:
        """The battery with its first checks."""
        untaken = [RefusedCase(item.name, item.why_not) for item in items if item.why_not]
        return Begun(self.planned(items), untaken, self, setting)

    def planned(self, items: Sequence[Item]) -> list[PlannedCheck]:
        taken = {item.name: item for item in items if not item.why_not}
        self._items |= taken
        # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
        without = {"recover": False, **self._request.options}
        return [
            PlannedCheck(name, replace(self._request, options={**without, **item.options}))
            for name, item in taken.items()
        ]

    def weighed(self, checked: CheckOutcome) -> CheckOutcome:
        item = self._items[checked.title]
        is_strict = self._request.options.get("strict")
        return hinted(checked if is_strict else judged(checked, item, self._checked), item)

    def _checked(self, options: Mapping[str, Any]) -> CheckOutcome:
        (again,) = check_each([PlannedCheck("", replace(self._request, options=options))], self._setting)
        return again

    def in_full(self, failing: CheckOutcome) -> CheckOutcome:
        """The simplest failing check as it is shown, with the inside of a black box."""
        is_given = "recover" in self._request.options
        return failing if is_given else self.weighed(looked_into(failing, self._setting))


class _CombinationBattery(Battery):
    """Checks of combinations, each round planned by what came of those before it."""

    def __init__(self, request: CheckRequest, setting: Setting, combining: CombinationRounds) -> None:
        super().__init__(request, setting)
        self._combining, self._seen = combining, 0
        self.titles = combining.titles

    def alike(self, planned: PlannedCheck) -> Hashable:
        return tuple(planned.request.options.get(name) for name in _COMPILED) if self._setting.workers > 1 else None

    def weighed(self, checked: CheckOutcome) -> CheckOutcome:
        """The check, numbered so that the case with the fewest properties comes first: that is shown in full."""
        weighed = super().weighed(checked)
        number = weighed.report.number
        return weighed if number >= _MOST else weighed.numbered(_MOST * len(weighed.title.split()) + number)

    def __call__(self, made: Sequence[CheckOutcome]) -> Sequence[PlannedCheck]:
        came, self._seen = {checked.title: checked for checked in made[self._seen :]}, len(made)
        try:
            return self.planned(self._combining.rounds.send(came))
        except StopIteration:
            self.coverage = self._combining.coverage
            return ()


# Checks of one battery, far more than there are.
_MOST = 1_000_000
# The options by which other code is compiled for a kernel; where a tensor lies and how long it is hardly are.
_COMPILED = (
    "dtype", "head_dim", "head_dim_v", "causal", "window", "bias", "softcap", "alibi", "mask", "sinks", "block_m",
)  # fmt: skip


def looked_into(failing: CheckOutcome, setting: Setting) -> CheckOutcome:
    """The check once more with the inside of a black box; as it was where there is none, or nothing is wrong now."""
    is_black_box = any({"P", "dS"} & set(run.absent) for run in failing.report.runs)
    if failing.verdict != "mismatch" or not is_black_box:
        return failing
    options = {name: word for name, word in failing.request.options.items() if name != "recover"}
    planned = PlannedCheck(failing.title, replace(failing.request, options=options))
    (again,) = check_each([planned], setting)
    return again.numbered(failing.report.number) if again.verdict == "mismatch" else failing
