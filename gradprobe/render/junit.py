"""JUnit XML: one test case an intermediate, head and layout, and one an identity; a test suite a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree as Xml

from ..model.documents import Reports
from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Head, Intermediate, Run
from ..model.memory_finding import WARNING
from ..model.report import Report
from ..model.writing import visible
from .alerts import IDENTITY, INHERITS, OF_MEMORY, WRONG, Alert, Rule, alerts_in
from .notation import (
    counts_in_words,
    element_line,
    identities,
    identity_line,
    residual,
    so_far,
    told_apart,
)
from .reasons import render_reasons
from .source_places import Base, base_of, places_of

# Of what is told in the terminal's words.
_WIDTH = 120
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


@dataclass(frozen=True)
class TestCase:
    """One test case."""

    group: str
    """The layout; JUnit's class name is the target and this."""
    name: str
    outcome: str = ""
    """failure, error or skipped; "" where it passes."""
    kind: str = ""
    """mismatch, inherited, the kind of an error, ..."""
    message: str = ""
    body: Sequence[str] = ()


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    return as_junit(so_far(several, code), base_of(several))


def as_junit(reports: Sequence[Report], base: Base) -> str:
    """The reports as XML that Jenkins' schema takes (junit-10.xsd).

    A check runs and compares all of its heads at once: its first test case has all of its time, so that the times of
    every level add up.
    """
    root = Xml.Element("testsuites", name="gradprobe")
    root.extend(_suite(report, base) for report in told_apart(reports))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    Xml.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, base: Base) -> Xml.Element:
    cases = list(_SuiteCases(report, base).all())
    outcomes = Counter(case.outcome for case in cases)
    suite = Xml.Element("testsuite", name=visible(report.name), tests=str(len(cases)))
    for count, outcome in _COUNTED.items():
        suite.set(count, str(outcomes[outcome]))
    seconds = f"{report.seconds.get('total', 0.0):.3f}"
    suite.set("time", seconds)
    _add_properties(suite, report, base)
    seen: Counter[tuple[str, str]] = Counter()
    for case in cases:
        # Two of one name are one to those who read JUnit.
        seen[case.group, case.name] += 1
        number = seen[case.group, case.name]
        named = replace(case, name=f"{case.name} ({number})") if number > 1 else case
        suite.append(_element(named, report, seconds))
        seconds = "0.000"
    if why := _why(report):
        Xml.SubElement(suite, "system-out").text = visible("\n".join(why))
    return suite


def _why(report: Report) -> list[str]:
    """The causes with their lines and the edit that was tried, as in the terminal."""
    return [line.plain for line in render_reasons(report, _WIDTH)]


def _add_properties(suite: Xml.Element, report: Report, base: Base) -> None:
    target, places = report.target, places_of(report)
    properties = {name: getattr(target, name) for name in ("name", "family", "backend", "sha256")}
    properties |= {"title": report.title, "reproduce": report.reproduce}
    for place in places[:1]:
        properties |= {"file": base.relative(place.file) or place.file, "line": place.line}
    properties |= {f"kernel {place.name}": base.shorten(place) for place in places[1:]}
    element = Xml.SubElement(suite, "properties")
    for name, value in properties.items():
        if value:
            Xml.SubElement(element, "property", name=visible(name), value=visible(str(value)))


def _element(case: TestCase, report: Report, seconds: str) -> Xml.Element:
    classname = f"{report.name}.{case.group}" if case.group else report.name
    names = {"classname": visible(classname), "name": visible(case.name)}
    element = Xml.Element("testcase", names, time=seconds)
    if case.outcome:
        about = {"type": visible(case.kind), "message": visible(case.message)}
        told = Xml.SubElement(element, case.outcome, about)
        told.text = visible("\n".join(filter(None, case.body))) or None
    return element


class _SuiteCases:
    """The test cases of one check; what fails says what its alert says."""

    def __init__(self, report: Report, base: Base) -> None:
        self._report, self._base = report, base
        self._alerts = list(alerts_in(report))

    def all(self) -> Iterator[TestCase]:
        for alert in self._alerts:
            message, kind = alert.sentences[0], alert.details.get("kind", "")
            if alert.level == WARNING:
                name = f"{kind} {alert.what}".rstrip()
                yield self._case("warnings", name, "skipped", WARNING, message, alert)
            elif alert.rule in OF_MEMORY.values():
                tensor, kernel = alert.details["tensor"], alert.details["kernel"]
                name = " ".join(filter(None, (kind, tensor, kernel and f"in {kernel}")))
                yield self._case("memory", name, "failure", kind, message, alert)
            elif alert.what == "check" and kind:  # what kept it from its end
                name = self._report.title or "check"
                yield self._case("", name, "error", kind, message, alert)
            elif alert.what == "check":  # a mismatch that nothing accounts for
                yield self._case("", "verdict", "failure", MISMATCH, message, alert)
        for run in self._report.runs:
            is_mild = self._report.is_warning or run.severity == WARNING
            for case in self._of_run(run):
                # JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen.
                is_shown_mild = is_mild and case.outcome in ("failure", "error")
                yield replace(case, outcome="skipped", kind=WARNING) if is_shown_mild else case

    def _case(
        self, group: str, name: str, outcome: str, kind: str, message: str, alert: Alert | None
    ) -> TestCase:
        body = list(alert.sentences) if alert else [message]
        for place in alert.places[:1] if alert else ():
            body.append(f"at: {self._base.shorten(place)} {place.name}".rstrip())
        return TestCase(group, name, outcome, kind, message, body)

    def _about(self, what: str, rule: Rule | None = None) -> Alert | None:
        those = (one for one in self._alerts if one.what == what)
        return next((one for one in those if rule in (None, one.rule)), None)

    def _of_run(self, run: Run) -> Iterator[TestCase]:
        layout = run.layout
        if failed := run.told_error:
            yield self._case(layout, "layout", "error", *failed, self._about(layout))
        elif run.verdict == SKIPPED:
            yield TestCase(layout, "layout", "skipped", "refused", str(run.skipped))
        for intermediate in run.intermediates:
            if not intermediate.heads:
                yield TestCase(
                    layout,
                    intermediate.title,
                    "skipped",
                    intermediate.status,
                    intermediate.status,
                )
            for head in intermediate.heads:
                yield self._of_head(run, intermediate, head)
        for key, identity in identities(run).items():
            if identity.holds:
                yield TestCase(layout, key)
            else:
                words = residual(identity) if run.first_mismatch else identity_line(identity)
                alert = self._about(key, IDENTITY)
                yield self._case(layout, key, "failure", "identity", words, alert)

    def _of_head(self, run: Run, intermediate: Intermediate, head: Head) -> TestCase:
        title, status, first = intermediate.title, head.status, run.first_mismatch
        batch = "" if head.batch is None else f" batch {head.batch}"
        name, counts = f"{title}{batch} head {head.head}", counts_in_words(head)
        if status not in (MISMATCH, INHERITED):
            return TestCase(run.layout, name)
        rule, how = (
            (WRONG, "is wrong by itself") if status == MISMATCH else (INHERITS, "only inherits")
        )
        message, alert = f"{title} {how}: {counts}", self._about(title, rule)
        case = self._case(run.layout, name, "failure", status, message, alert)
        body = [counts, *case.body]
        here = title, head.batch, head.head
        if first and status == MISMATCH and here == (first.title, first.batch, first.head):
            return replace(case, message=element_line(first), body=[*body, *_why(self._report)])
        return replace(case, body=body)
