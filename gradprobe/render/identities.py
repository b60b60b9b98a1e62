"""The table of a check that identities alone judged: how far each is from holding in each layout."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ..model.report import Report
from .text import STYLES, identities, ratio

_NAME = 34


def identity_table(report: Report) -> Iterator[Text]:
    """A row for each identity, and a column for each layout that it was tried in."""
    runs = [(run.layout, identities(run)) for run in report.measured]
    keys = {key: identity.name for _, found in runs for key, identity in found.items()}
    yield Text("  how far each is off, as a multiple of what is allowed", "dim")
    yield Text(f"  {'':<{_NAME}}" + "".join(f"{layout[:13]:>14}" for layout, _ in runs), "dim")
    for key in sorted(keys, key=lambda key: (key == "repeat", len(key), key)):
        line = Text(f"  {keys[key]:<{_NAME}}")
        for _, found in runs:
            one = found.get(key)
            times = "" if one is None else ratio(one.ratio if one.residual != 0 else 0.0)
            line.append(f"{times:>14}", "" if one is None or one.holds else STYLES["mismatch"])
        yield line
