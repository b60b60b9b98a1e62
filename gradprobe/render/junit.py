"""JUnit XML: one test case an intermediate, head and layout, and one an identity; a test suite a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from ..model.documents import Reports
from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Head, Intermediate, Run
from ..model.memory_finding import KINDS, WARNING
from ..model.report import Report
from ..model.writing import visible
from .alerts import IDENTITY, INHERITS, WRONG, Alert, Rule, alerts_in
from .notation import (
    counts_in_words,
    element_line,
    identities,
    identity_line,
    residual,
    so_far,
)
from .reasons import render_reasons
from .source_places import Base, base_of

# Of what is told in the terminal's words.
_WIDTH = 120
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


class TestCase(NamedTuple):
    """One test case."""

    group: str
    """The layout; JUnit's class name is the target and this."""
    name: str
    outcome: str = ""
    """failure, error or skipped; "" where it passes."""
    kind: str = ""
    """mismatch, inherited, the kind of an error, ..."""
    message: str = ""
    alert: Alert | None = None
    """Which says more of it."""
    counts: str = ""
    is_first: bool = False
    """Whether it holds the first mismatch, and so the causes."""


def text(several: Reports, code: int | None) -> str:
    """The reports as XML that Jenkins' schema takes (junit-10.xsd), as long as a command runs with one unfinished."""
    root, base = Xml.Element("testsuites", name="gradprobe"), base_of(several)
    for report in so_far(several, code):
        root.append(_suite(report, base))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    Xml.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, base: Base) -> Xml.Element:
    cases = list(_cases(report))
    outcomes = Counter(case.outcome for case in cases)
    suite = Xml.Element("testsuite", name=visible(report.name), tests=str(len(cases)))
    for count, outcome in _COUNTED.items():
        suite.set(count, str(outcomes[outcome]))
    suite.set("time", f"{report.seconds.get('total', 0.0):.3f}")
    seen: Counter[tuple[str, str]] = Counter()
    for case in cases:
        seen[case[:2]] += 1
        # Two of one name are one to those who read JUnit.
        number = f" ({seen[case[:2]]})" if seen[case[:2]] > 1 else ""
        suite.append(_element(case, number, report, base))
    return suite


def _element(case: TestCase, number: str, report: Report, base: Base) -> Xml.Element:
    classname = f"{report.name}.{case.group}" if case.group else report.name
    names = {"classname": visible(classname), "name": visible(case.name + number)}
    element = Xml.Element("testcase", names)
    if not case.outcome:
        return element
    about = {"type": visible(case.kind), "message": visible(case.message)}
    told, body = Xml.SubElement(element, case.outcome, about), [case.counts]
    if case.alert:
        body += case.alert.sentences
        body += [f"at: {base.shorten(place)} {place.name}" for place in case.alert.places[:1]]
    if case.is_first:
        body += [line.plain for line in render_reasons(report, _WIDTH)]
    told.text = visible("\n".join(filter(None, map(str.rstrip, body)))) or None
    return element


def _cases(report: Report) -> Iterator[TestCase]:
    """What fails says what its alert says."""
    alerts = list(alerts_in(report))
    for alert in alerts:
        yield from _of_alert(report, alert)
    for run in report.runs:
        is_mild = report.is_warning or run.severity == WARNING
        for case in _of_run(run, alerts):
            # JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen.
            is_shown_mild = is_mild and case.outcome in ("failure", "error")
            yield case._replace(outcome="skipped", kind=WARNING) if is_shown_mild else case


def _of_alert(report: Report, alert: Alert) -> Iterator[TestCase]:
    """What is said of no layout: warnings, memory, and what kept a check from its end."""
    message, kind, name = alert.sentences[0], alert.kind, f"{alert.kind} {alert.about}".rstrip()
    if alert.level == WARNING:
        yield TestCase("warnings", name, "skipped", WARNING, message, alert)
    elif kind in KINDS:
        yield TestCase("memory", name, "failure", kind, message, alert)
    elif alert.what == "check" and kind:
        yield TestCase("", report.title or "check", "error", kind, message, alert)
    elif alert.what == "check":  # a mismatch that nothing accounts for
        yield TestCase("", "verdict", "failure", MISMATCH, message, alert)


def _about(alerts: Sequence[Alert], what: str, rule: Rule | None = None) -> Alert | None:
    those = (alert for alert in alerts if alert.what == what and rule in (None, alert.rule))
    return next(those, None)


def _of_run(run: Run, alerts: Sequence[Alert]) -> Iterator[TestCase]:
    layout = run.layout
    if failed := run.told_error:
        yield TestCase(layout, "layout", "error", *failed, _about(alerts, layout))
    elif run.verdict == SKIPPED:
        yield TestCase(layout, "layout", "skipped", "refused", str(run.skipped))
    for intermediate in run.intermediates:
        if not intermediate.heads:
            status = intermediate.status
            yield TestCase(layout, intermediate.title, "skipped", status, status)
        for head in intermediate.heads:
            yield _of_head(run, intermediate, head, alerts)
    for key, identity in identities(run).items():
        if identity.holds:
            yield TestCase(layout, key)
        else:
            words = residual(identity) if run.first_mismatch else identity_line(identity)
            alert = _about(alerts, key, IDENTITY)
            yield TestCase(layout, key, "failure", "identity", words, alert)


def _of_head(
    run: Run, intermediate: Intermediate, head: Head, alerts: Sequence[Alert]
) -> TestCase:
    title, status, first = intermediate.title, head.status, run.first_mismatch
    batch = "" if head.batch is None else f" batch {head.batch}"
    name, counts = f"{title}{batch} head {head.head}", counts_in_words(head)
    if status not in (MISMATCH, INHERITED):
        return TestCase(run.layout, name)
    inherits = status == INHERITED
    message = f"{title} {'only inherits' if inherits else 'is wrong by itself'}: {counts}"
    here = title, head.batch, head.head
    is_first = bool(first and not inherits and here == (first.title, first.batch, first.head))
    if first and is_first:
        message = element_line(first)
    alert = _about(alerts, title, INHERITS if inherits else WRONG)
    return TestCase(run.layout, name, "failure", status, message, alert, counts, is_first)
