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
    alerts, lines = alerts_of(reports), list[str]()
    for level in KINDS:
        those = [alert for alert in alerts if alert.level == level]
        for at, alert in enumerate(those[:MOST], 1):
            lines.append(_command(alert, base, len(those) - MOST if at == MOST else 0))
    return lines


def _command(alert: Alert, base: Base, left_out: int) -> str:
    properties = {}
    place = next(iter(alert.places), None)
    if place and (file := base.relative(place.file)):
        properties = {"file": file} | ({"line": str(place.line)} if place.line else {})
    properties["title"] = visible(f"{alert.rule.id} {alert.title}")[:LONGEST_TITLE]
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{KINDS[alert.level]} {written}::{_data(_message(alert, base, left_out))}"


def _message(alert: Alert, base: Base, left_out: int) -> str:
    sentences = [f"{alert.check}: {alert.sentences[0]}", *alert.sentences[1:]]
    if alert.places:
        places = (f"{base.shorten(place)} {place.name}".rstrip() for place in alert.places[:8])
        sentences.append(f"Where: {', '.join(places)}")
    text = visible("\n".join(sentences))[:LONGEST_MESSAGE]
    if left_out > 0:
        text += f"\nAnd {plural(left_out, 'more finding')} of this kind, not shown here."
    return text


def _data(text: str) -> str:
    """Escaped as the runner undoes it in a message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escaped as the runner undoes it in a property's value."""
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")
