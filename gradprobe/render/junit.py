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
    body: tuple[str, ...] = ()


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    return as_junit(so_far(several, code), base_of(several))


def as_junit(reports: Sequence[Report], base: Base) -> str:
    """The reports as XML that Jenkins' schema takes (junit-10.xsd).

    A check runs and compares all of its heads at once: its seconds are shared out among its test cases, equally, so
    that the times of every level add up.
    """
    root = Xml.Element("testsuites", name="gradprobe")
    suites = [_suite(report, base) for report in told_apart(reports)]
    root.extend(suites)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in suites)))
    root.set("time", _seconds(sum(map(_milliseconds, reports))))
    Xml.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, base: Base) -> Xml.Element:
    cases = list(_SuiteCases(report, base).all())
    outcomes = Counter(case.outcome for case in cases)
    suite = Xml.Element("testsuite", name=visible(report.name), tests=str(len(cases)))
    for count, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(outcomes[outcome]))
    suite.set("time", _seconds(_milliseconds(report)))
    _add_properties(suite, report, base)
    # Whole milliseconds that differ by 1 at most and add up.
    share, rest = divmod(_milliseconds(report), max(len(cases), 1))
    seen: Counter[tuple[str, str]] = Counter()
    for at, case in enumerate(cases):
        # Two of one name are one to those who read JUnit.
        seen[case.group, case.name] += 1
        number = seen[case.group, case.name]
        named = replace(case, name=f"{case.name} ({number})") if number > 1 else case
        suite.append(_element(named, report, share + (at < rest)))
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


def _element(case: TestCase, report: Report, milliseconds: int) -> Xml.Element:
    classname = f"{report.name}.{case.group}" if case.group else report.name
    names = {"classname": visible(classname), "name": visible(case.name)}
    element = Xml.Element("testcase", names, time=_seconds(milliseconds))
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
            if alert.level == WARNING:
                name = f"{alert.details['kind']} {alert.what}".rstrip()
                yield self._case("warnings", name, "skipped", WARNING, alert.sentences[0], alert)
            elif alert.rule in OF_MEMORY.values():
                kind, tensor, kernel = (
                    alert.details[name] for name in ("kind", "tensor", "kernel")
                )
                name = " ".join(filter(None, (kind, tensor, kernel and f"in {kernel}")))
                yield self._case("memory", name, "failure", kind, alert.sentences[0], alert)
            elif (
                alert.what == "check"
            ):  # what kept it from its end, or a mismatch that nothing accounts for
                is_error = "kind" in alert.details
                outcome, kind = (
                    ("error", alert.details["kind"]) if is_error else ("failure", MISMATCH)
                )
                name = (self._report.title or "check") if is_error else "verdict"
                yield self._case("", name, outcome, kind, alert.sentences[0], alert)
        for run in self._report.runs:
            is_mild = self._report.is_warning or run.severity == WARNING
            for case in self._of_run(run):
                # JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen.
                is_mild_now = is_mild and case.outcome in ("failure", "error")
                yield replace(case, outcome="skipped", kind=WARNING) if is_mild_now else case

    def _case(
        self, group: str, name: str, outcome: str, kind: str, message: str, alert: Alert | None
    ) -> TestCase:
        body = list(alert.sentences) if alert else [message]
        for place in alert.places[:1] if alert else ():
            body.append(f"at: {self._base.shorten(place)} {place.name}".rstrip())
        return TestCase(group, name, outcome, kind, message, tuple(body))

    def _about(self, what: str, *rules: Rule) -> Alert | None:
        those = (one for one in self._alerts if one.what == what)
        return next((one for one in those if one.rule in rules or not rules), None)

    def _of_run(self, run: Run) -> Iterator[TestCase]:
        if failed := run.told_error:
            yield self._case(run.layout, "layout", "error", *failed, self._about(run.layout))
        elif run.verdict == SKIPPED:
            yield TestCase(run.layout, "layout", "skipped", "refused", str(run.skipped))
        for intermediate in run.intermediates:
            if not intermediate.heads:
                yield TestCase(
                    run.layout,
                    intermediate.title,
                    "skipped",
                    intermediate.status,
                    intermediate.status,
                )
            for head in intermediate.heads:
                yield self._of_head(run, intermediate, head)
        for key, identity in identities(run).items():
            if identity.holds:
                yield TestCase(run.layout, key)
            else:
                words = residual(identity) if run.first_mismatch else identity_line(identity)
                alert = self._about(key, IDENTITY)
                yield self._case(run.layout, key, "failure", "identity", words, alert)

    def _of_head(self, run: Run, intermediate: Intermediate, head: Head) -> TestCase:
        title, status, first = intermediate.title, head.status, run.first_mismatch
        batch = "" if head.batch is None else f" batch {head.batch}"
        name = f"{title}{batch} head {head.head}"
        if status not in (MISMATCH, INHERITED):
            return TestCase(run.layout, name)
        how = "is wrong by itself" if status == MISMATCH else "only inherits"
        counts = counts_in_words(head)
        message, alert = (
            f"{title} {how}: {counts}",
            self._about(title, WRONG if status == MISMATCH else INHERITS),
        )
        case = self._case(run.layout, name, "failure", status, message, alert)
        case = replace(case, body=(counts, *case.body))
        here = title, head.batch, head.head
        if first and status == MISMATCH and here == (first.title, first.batch, first.head):
            body = (*case.body, *_why(self._report))
            return replace(case, message=element_line(first), body=body)
        return case


def _milliseconds(report: Report) -> int:
    return round(1000 * report.seconds.get("total", 0.0))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
