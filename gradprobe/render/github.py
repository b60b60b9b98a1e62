"""What GitHub shows: annotations of lines, and a Markdown table for a step's summary."""

import re
from collections import Counter
from collections.abc import Sequence

from ..model.documents import Reports
from ..model.layout_run import FAILED, INCOMPLETE, MATCH, MISMATCH
from ..model.number import plural
from ..model.report import Report
from ..model.writing import visible
from .alerts import Alert, alerts_of
from .notation import errors_of, group, so_far
from .source_places import Base, base_of

# GitHub shows ten annotations of each kind a step.
MOST = 10
# It takes titles of 255 characters and messages of 64 KB; a UTF-8 character is four bytes at most.
LONGEST_TITLE, LONGEST_MESSAGE = 255, 16_000
_KINDS = {"error": "error", "warning": "warning", "note": "notice"}
# It drops a summary that is larger.
MOST_BYTES = 2**20
_SAID = {MISMATCH: "wrong", FAILED: "not checked", INCOMPLETE: "not finished", MATCH: "right"}
_HEAD = "| level | check | finding | where |\n|--|--|--|--|\n"
# Signs of Markdown, HTML, mentions, issues, emoji and links.
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~$@:]|(?<=www)\.")


def text(several: Reports, _: int | None) -> str:
    """One line an annotation, the worst first of each level; the tenth says how many more there are."""
    alerts = group(alerts_of(so_far(several, 0)), lambda alert: alert.level)
    base, lines = base_of(several), list[str]()
    for level in _KINDS:
        those = alerts.get(level, [])
        for at, alert in enumerate(those[:MOST], 1):
            lines.append(_command(alert, base, len(those) - MOST if at == MOST else 0))
    return "".join(lines)


def _command(alert: Alert, base: Base, left_out: int) -> str:
    title, place = visible(f"{alert.rule.id} {alert.title}")[:LONGEST_TITLE], ""
    if alert.places and (file := base.relative(alert.places[0].file)):
        line = alert.places[0].line
        place = f"file={_property(file)},{f'line={line},' if line else ''}"
    message = f"{alert.check}: " + "\n".join(alert.sentences)
    if alert.places:
        places = (f"{base.shorten(place)} {place.name}".rstrip() for place in alert.places[:8])
        message += f"\nWhere: {', '.join(places)}"
    message = visible(message)[:LONGEST_MESSAGE]
    if left_out > 0:
        message += f"\nAnd {plural(left_out, 'more finding')} of this kind, not shown here."
    return f"::{_KINDS[alert.level]} {place}title={_property(title)}::{_escaped(message)}\n"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(visible(text)).replace(":", "%3A").replace(",", "%2C")


def markdown(several: Reports, code: int | None, most: int = MOST_BYTES) -> str:
    """A table of findings and the commands that repeat them, cut to `most` bytes of UTF-8; "" without room for any."""
    reports, base = so_far(several, code), base_of(several)
    parts, tail = [_heading(reports) + _HEAD], ["\n"]
    parts += [_row(alert, base) for alert in alerts_of(reports)]
    for report in reports:
        if errors_of(report).verdict != MATCH and report.reproduce:
            tail.append(f"again: <code>{_plain(report.reproduce)}</code><br>\n")
        elif not report.is_warning:
            words = "right in " + plural(len(report.measured), "layout")
            parts.append(f"| match | {_plain(report.name)} | {words} | |\n")
    whole = "".join((*parts, *tail)).encode()
    if len(whole) <= most:
        return whole.decode()
    shown = whole[: max(0, most - 120)].decode(errors="ignore").rpartition("\n")[0]
    rest = f"\n\nThe rest is left out: a summary holds {most:,} bytes at most.\n"
    return shown and shown + rest


def _row(alert: Alert, base: Base) -> str:
    level = alert.level if alert.level in ("none", "note") else f"**{alert.level}**"
    where = base.shorten(alert.places[0]) if alert.places else ""
    first = [line for line in alert.sentences[2:] if line.startswith("FIRST ")]
    found = _plain("\n".join([*alert.sentences[:2], *first]))
    return f"| {level} | {_plain(alert.check)} | {found} | {_plain(where)} |\n"


def _heading(reports: Sequence[Report]) -> str:
    verdicts = Counter(report.verdict for report in reports if not report.is_warning)
    words = [f"{verdicts[word]} {said}" for word, said in _SAID.items() if verdicts[word]]
    if warned := sum(len(report.warnings) for report in reports):
        words.append(f"{warned} warned of")
    return f"### gradprobe: {plural(len(reports), 'check')}, {', '.join(words)}\n\n"


def _plain(text: str) -> str:
    escaped = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", visible(text))
    return escaped.replace("\n", "<br>")
