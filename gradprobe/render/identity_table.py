"""The table of a check that identities alone judged: how far each is from holding in each layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from ..model.layout_run import Identity
from ..model.report import Report
from .notation import STYLES, identities, ratio

_NAME, _CELL = 34, 14


def identity_table(report: Report, width: int) -> Iterator[Text]:
    """A row for each identity, and a column for each layout that it was tried in; where these are many, below."""
    runs = [(run.layout, identities(run)) for run in report.measured]
    keys = {key: identity.name for _, found in runs for key, identity in found.items()}
    keys = {key: keys[key] for key in sorted(keys, key=lambda key: (key == "repeat", len(key), key))}
    columns = max(1, (width - _NAME - 2) // _CELL)
    yield Text("  how far each is off, as a multiple of what is allowed", "dim")
    for first in range(0, len(runs), columns):
        yield from _part(keys, runs[first : first + columns])


def _part(keys: Mapping[str, str], runs: Sequence[tuple[str, Mapping[str, Identity]]]) -> Iterator[Text]:
    yield Text(f"  {'':<{_NAME}}" + "".join(f"{layout[: _CELL - 1]:>{_CELL}}" for layout, _ in runs), "dim")
    for key in (key for key in keys if any(key in found for _, found in runs)):
        line = Text(f"  {keys[key]:<{_NAME}}")
        for _, found in runs:
            identity = found.get(key)
            times = "" if identity is None else ratio(identity.ratio if identity.residual != 0 else 0.0)
            line.append(f"{times:>{_CELL}}", "" if identity is None or identity.holds else STYLES["mismatch"])
        yield line
