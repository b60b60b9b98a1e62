"""`gradprobe check --battery`: cases that expose what others hide, of which each failure is told once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..commands.configuration.effective import EffectiveSettings
from ..commands.suite.battery import Item, battery, hinted, set_by, weighed
from ..commands.suite.checked import Checked, Planned
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.combining import Combining
from ..commands.suite.factors import factors_of, set_by_factors
from ..commands.suite.matrix import described
from ..inputs.history import CheckRequest
from ..inputs.options import command_line
from ..model.coverage import PAIRS, TRIPLES
from ..model.documents import Untaken
from ..model.failures import UsageFailure
from . import shared_options as shared
from .checks import Further, check_several
from .forms import Forms


def check_battery(
    word: str, request: CheckRequest, effective: EffectiveSettings, forms: Forms, setting: Setting
) -> int:
    """Makes the checks of a battery; the exit code of all.

    Args:
        word: one of shared_options.BATTERIES.

    Raises:
        UsageFailure: an option was given that a case of it sets.
    """
    by = set_by if word == shared.QUICK else set_by_factors
    for name, value in request.options.items():
        if what := by(name):
            one = command_line("", "", {name: value}).split(maxsplit=1)[1]
            raise UsageFailure(f"{one}: {what} of --battery sets it", "drop it, or check that case without --battery")
    request = effective.over(request)
    request = replace(request, options={name: value for name, value in request.options.items() if not by(name)})
    device = str(request.options.get("device", "auto"))
    (takes,) = described([request], device, setting.timeout, isolate=setting.isolate)
    if takes is None:  # it cannot be imported, is asked once, and that says why
        return _Battery(request, setting).check([Item(1, "contiguous", {}, "")], forms)
    if word == shared.QUICK:
        return _Battery(request, setting).check(battery(takes.family, takes.names, takes.required), forms)
    on_gpu = takes.device == "cuda"
    workers = shared.count_of_workers(None)
    setting = replace(setting, workers=min(workers, _ON_ONE_GPU) if on_gpu else workers)
    factors = factors_of(takes, request.options, on_gpu=on_gpu)
    combining = Combining(factors, shared.BATTERIES[word] or (TRIPLES if on_gpu else PAIRS))
    return _Combined(request, setting, combining).check(next(combining.rounds), forms)


# Processes that share a GPU: cases are small, and what takes long is to compile and to compare them.
_ON_ONE_GPU = 8


class _Battery(Further):
    """Checks of items, each weighed by what it asks for."""

    titles: Sequence[str] = ()
    """Such as those of further checks may be."""

    def __init__(self, request: CheckRequest, setting: Setting) -> None:
        self._request, self._setting = request, setting
        self._items: dict[str, Item] = {}

    def check(self, items: Sequence[Item], forms: Forms) -> int:
        """Makes them; the exit code of all."""
        return check_several(
            self._planned(items),
            forms,
            self._setting,
            untaken=[Untaken(item.name, item.why_not) for item in items if item.why_not],
            closer=self._in_full,
            weigh=self._weighed,
            titles=self.titles,
            further=self,
        )

    def _planned(self, items: Sequence[Item]) -> list[Planned]:
        taken = {item.name: item for item in items if not item.why_not}
        self._items |= taken
        # Black boxes are not looked into: of all that fail, the simplest alone is shown in full.
        without = {"recover": False, **self._request.options}
        return [
            Planned(name, replace(self._request, options={**without, **item.options})) for name, item in taken.items()
        ]

    def _weighed(self, checked: Checked) -> Checked:
        item = self._items[checked.title]
        is_strict = self._request.options.get("strict")
        return hinted(checked if is_strict else weighed(checked, item, self._made), item)

    def _made(self, options: Mapping[str, Any]) -> Checked:
        (again,) = check_each([Planned("", replace(self._request, options=options))], self._setting)
        return again

    def _in_full(self, failing: Checked) -> Checked:
        """The simplest failing check as it is shown, with the inside of a black box."""
        is_given = "recover" in self._request.options
        return failing if is_given else self._weighed(looked_into(failing, self._setting))


class _Combined(_Battery):
    """Checks of combinations, each round planned by what came of those before it."""

    def __init__(self, request: CheckRequest, setting: Setting, combining: Combining) -> None:
        super().__init__(request, setting)
        self._combining, self._seen = combining, 0
        self.titles = combining.titles

    def alike(self, planned: Planned) -> Hashable:
        return tuple(planned.request.options.get(name) for name in _COMPILED) if self._setting.workers > 1 else None

    def _weighed(self, checked: Checked) -> Checked:
        """The check, numbered so that the case with the fewest properties comes first: that is shown in full."""
        weighed = super()._weighed(checked)
        number = weighed.report.number
        return weighed if number >= _MOST else weighed.numbered(_MOST * len(weighed.title.split()) + number)

    def __call__(self, made: Sequence[Checked]) -> Sequence[Planned]:
        came, self._seen = {checked.title: checked for checked in made[self._seen :]}, len(made)
        try:
            return self._planned(self._combining.rounds.send(came))
        except StopIteration:
            self.coverage = self._combining.coverage
            return ()


# Checks of one battery, far more than there are.
_MOST = 1_000_000
# The options by which other code is compiled for a kernel; where a tensor lies and how long it is hardly are.
_COMPILED = (
    "dtype", "head_dim", "head_dim_v", "causal", "window", "bias", "softcap", "alibi", "mask", "sinks", "block_m",
)  # fmt: skip


def looked_into(failing: Checked, setting: Setting) -> Checked:
    """The check once more with the inside of a black box; as it was where there is none, or nothing is wrong now."""
    is_black_box = any({"P", "dS"} & set(run.absent) for run in failing.report.runs)
    if failing.verdict != "mismatch" or not is_black_box:
        return failing
    options = {name: word for name, word in failing.request.options.items() if name != "recover"}
    planned = Planned(failing.title, replace(failing.request, options=options))
    (again,) = check_each([planned], setting)
    return again.numbered(failing.report.number) if again.verdict == "mismatch" else failing
