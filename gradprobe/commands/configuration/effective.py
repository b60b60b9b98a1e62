"""What is in force: flags before the environment before the table; and the checks that a project configures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...inputs.history import CheckRequest
from ...model.failures import UsageFailure
from ..suite.plan import PlannedCheck
from .settings import (
    CaseSettings,
    Settings,
    misspelt_table,
    nearest_table,
    options_of,
    seconds,
    settings_of,
    timeout_of,
    variable_of,
)

# Two options for the same thing: where a stronger source sets one, a weaker source's other is ignored.
_EITHER = {"layout": "runs", "runs": "layout"}


@dataclass(frozen=True)
class EffectiveSettings:
    """What the environment and the project say besides the command line."""

    settings: Settings | None
    """None where no project is configured."""
    environment: Mapping[str, Any]
    """Case options, as words of the command line."""
    seconds: float | None
    """The timeout that the environment gives."""
    misspelt: str = ""
    """Of a project without a table, one that is nearly it; "" where there is none."""

    def refuse_misspelt(self) -> None:
        """Raises UsageFailure where a table may be meant that is not read."""
        if self.misspelt:
            raise UsageFailure(self.misspelt, "did you mean [tool.gradprobe]? else name a TARGET")

    @property
    def top(self) -> CaseSettings:
        """What the table says of all checks."""
        return self.settings.top if self.settings else CaseSettings()

    def over(self, request: CheckRequest) -> CheckRequest:
        """A check that the command line names: its own words first, then the environment's, then the table's.

        The table's family and reference are those of its own targets.
        """
        top = self.top if request.target in self.top.targets else CaseSettings()
        return replace(
            request,
            family=request.family or top.family,
            reference=request.reference or top.reference,
            options=merged(request.options, self.environment, self.top.options),
        )

    def timeout(self, given: float | None) -> float | None:
        """The seconds for one check: those of the command line, the environment's, else the table's.

        Raises:
            UsageFailure: --timeout is no valid time.
        """
        if given is not None:
            return seconds(given, "--timeout")
        if self.seconds is not None or self.settings is None:
            return self.seconds
        return self.settings.timeout

    def line(
        self, given: Mapping[str, Any], timeout: float | None, more: Sequence[str] = ()
    ) -> str | None:
        """What is in force besides the command line, in one line; None where nothing is.

        Args:
            given: the case options of the command line, which win over all.
            timeout: its timeout, likewise.
            more: what else the table gives.
        """
        words = [f"{self.misspelt}; did you mean [tool.gradprobe]?"] if self.misspelt else []
        heard = [
            name for name in self.environment if not given.keys() & {name, _EITHER.get(name)}
        ]
        heard += ["timeout"] if self.seconds is not None and timeout is None else []
        words += [f"{variable_of(name)} is set" for name in heard]
        table = [*more, *self._of_table(merged(given, self.environment), timeout)]
        if self.settings is not None and table:
            words.insert(0, f"[tool.gradprobe] of {self.settings.place}: {', '.join(table)}")
        return "; ".join(words) or None

    def _of_table(self, stronger: Mapping[str, Any], timeout: float | None) -> list[str]:
        options = merged(stronger, self.top.options)
        found = []
        if "runs" in options and "runs" not in stronger:
            found.append(f"layouts {' and '.join(options['runs'])}")
        if "strict" in options and "strict" not in stronger:
            found.append("strict" if options["strict"] else "not strict")
        of_table = self.settings.timeout if self.settings else None
        if of_table and self.seconds is None and timeout is None:
            found.append(f"timeout {of_table:g} s")
        return found


def effective_settings(folder: Path) -> EffectiveSettings:
    """What the environment and the project of a folder say. Raises UsageFailure."""
    table = nearest_table(folder)
    misspelt = misspelt_table(folder) if table is None else ""
    settings = None if table is None else settings_of(table)
    return EffectiveSettings(settings, options_of(), timeout_of(), misspelt)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The options of several sources, the strongest first."""
    found: dict[str, Any] = {}
    for options in layers:
        weaker = {name: word for name, word in options.items() if _EITHER.get(name) not in found}
        found = weaker | found
    return found


def configured(effective: EffectiveSettings) -> list[PlannedCheck]:
    """Every configured target on every configured case; on the default case where none is. Empty: no targets.

    One target's checks follow one another: they share a process.

    Raises:
        UsageFailure: a case has no target.
    """
    settings = effective.settings
    if settings is None or not (settings.top.targets or settings.cases):
        return []
    top, plan = settings.top, list[PlannedCheck]()
    for name, case in (settings.cases or {"": CaseSettings()}).items():
        targets = case.targets or top.targets
        if not targets:
            what = f"[tool.gradprobe.cases.{name}] of {settings.place} has no target"
            way_out = 'add targets = ["FILE.py:FUNCTION"] to it, or to [tool.gradprobe]'
            raise UsageFailure(what, way_out)
        options = merged(effective.environment, case.options, top.options)
        own = (case.family or top.family, case.reference or top.reference, options)
        for target in targets:
            request = CheckRequest(target, *own)
            plan.append(PlannedCheck(f"{target} {name}".rstrip(), request))
    order = list(dict.fromkeys([*top.targets, *(check.request.target for check in plan)]))
    return sorted(plan, key=lambda check: order.index(check.request.target))
