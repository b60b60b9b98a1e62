"""GitHub's workflow commands: findings as annotations at lines of the source, the worst first."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.documents import Reports
from ..model.number import plural
from ..model.report import Report
from ..model.writing import visible
from .alerts import Alert, alerts_of
from .source_places import Base, base_of

# GitHub shows ten of each kind a step.
MOST = 10
# It takes titles of 255 characters and messages of 64 KB; a UTF-8 character is four bytes at most.
LONGEST_TITLE, LONGEST_MESSAGE = 255, 16_000
KINDS = {"error": "error", "warning": "warning", "note": "notice"}


def text(several: Reports, code: int | None) -> str:
    """The annotations of all, for stderr: GitHub reads them there as on stdout, which may hold a document."""
    return "".join(f"{line}\n" for line in annotation_commands(several.reports, base_of(several)))


def annotation_commands(reports: Sequence[Report], base: Base) -> list[str]:
    """One line an annotation: errors, then warnings, then notices, each the worst first.

    Ten of each; the tenth says how many more there are.
    """
    found = alerts_of(reports)
    lines = []
    for level, kind in KINDS.items():
        alerts = [alert for alert in found if alert.level == level]
        for number, alert in enumerate(alerts[:MOST], 1):
            left_out = len(alerts) - MOST if number == MOST else 0
            lines.append(_command(kind, alert, base, left_out))
    return lines


def _command(kind: str, alert: Alert, base: Base, left_out: int) -> str:
    place = next(iter(alert.places), None)
    file = base.relative(place.file) if place else None
    properties = {
        "file": file,
        "line": str(place.line) if place and file and place.line else None,
        "title": visible(f"{alert.rule.id} {alert.title}")[:LONGEST_TITLE],
    }
    written = ",".join(
        f"{name}={_property(value)}" for name, value in properties.items() if value
    )
    return f"::{kind} {written}::{_data(_message(alert, base, left_out))}"


def _message(alert: Alert, base: Base, left_out: int) -> str:
    sentences = [f"{alert.check}: {alert.sentences[0]}", *alert.sentences[1:]]
    if alert.places:
        places = (f"{base.shorten(place)} {place.name}".rstrip() for place in alert.places[:8])
        sentences.append(f"Where: {', '.join(places)}")
    text = visible("\n".join(sentences))[:LONGEST_MESSAGE]
    return (
        f"{text}\nAnd {plural(left_out, 'more finding')} of this kind, not shown here."
        if left_out > 0
        else text
    )


def _data(text: str) -> str:
    """Escaped as the runner undoes it in a message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escaped as the runner undoes it in a property's value."""
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")
