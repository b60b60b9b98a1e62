"""JUnit XML: one test case an intermediate, head and layout, and one an identity; a test suite a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as Xml

from ..model.documents import Reports
from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Head, Intermediate, Run
from ..model.memory_finding import KINDS, WARNING
from ..model.report import Report
from ..model.writing import visible
from .alerts import IDENTITY, INHERITS, WRONG, Alert, Rule, alerts_in
from .notation import counts_in_words, element_line, identities, identity_line, residual, so_far
from .reasons import render_reasons
from .source_places import Base, base_of

# Of what is told in the terminal's words.
_WIDTH = 120
_FAILURE, _ERROR = "failure", "error"
_COUNTED = {"failures": _FAILURE, "errors": _ERROR, "skipped": SKIPPED}


def text(several: Reports, code: int | None) -> str:
    """The reports as XML that Jenkins' schema takes (junit-10.xsd), as long as a command runs with one unfinished."""
    root, base = Xml.Element("testsuites", name="gradprobe"), base_of(several)
    for report in so_far(several, code):
        root.append(_TestSuite(report, base).element())
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    Xml.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + Xml.tostring(root, encoding="unicode") + "\n"


class _TestSuite:
    """The test cases of one check; what fails says what its alert says."""

    def __init__(self, report: Report, base: Base) -> None:
        self._report, self._base = report, base
        self._alerts = list(alerts_in(report))

    def element(self) -> Xml.Element:
        suite, seen = Xml.Element("testsuite", name=visible(self._report.name)), Counter[str]()
        suite.extend(self._cases())
        suite.set("tests", str(len(suite)))
        for count, outcome in _COUNTED.items():
            suite.set(count, str(len(suite.findall(f"*/{outcome}"))))
        suite.set("time", f"{self._report.seconds.get('total', 0.0):.3f}")
        for case in suite:
            name = case.get("name", "")
            known = f"{case.get('classname')} {name}"
            seen[known] += 1
            if seen[known] > 1:  # two of one name are one to those who read JUnit
                case.set("name", f"{name} ({seen[known]})")
        return suite

    def _cases(self) -> Iterator[Xml.Element]:
        for alert in self._alerts:
            yield from self._of_alert(alert)
        for run in self._report.runs:
            is_mild = self._report.is_warning or run.severity == WARNING
            for case in self._of_run(run):
                # JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen.
                for outcome in case if is_mild else ():
                    if outcome.tag != SKIPPED:
                        outcome.tag = SKIPPED
                        outcome.set("type", WARNING)
                yield case

    def _case(
        self,
        group: str,
        name: str,
        outcome: str = "",
        kind: str = "",
        message: str = "",
        alert: Alert | None = None,
        more: Sequence[str] = (),
    ) -> Xml.Element:
        """A test case of a layout, which is a part of JUnit's class name; without an outcome it passes."""
        of = f"{self._report.name}.{group}" if group else self._report.name
        element = Xml.Element("testcase", classname=visible(of), name=visible(name))
        if outcome:
            about = {"type": visible(kind), "message": visible(message)}
            body = [*more[:1], *(alert.sentences if alert else ())]
            for place in alert.places[:1] if alert else ():
                body.append(f"at: {self._base.shorten(place)} {place.name}".rstrip())
            text = visible("\n".join([*body, *more[1:]]))
            Xml.SubElement(element, outcome, about).text = text or None
        return element

    def _of_alert(self, alert: Alert) -> Iterator[Xml.Element]:
        message, kind = alert.sentences[0], alert.kind
        name = f"{kind} {alert.about}".rstrip()
        if alert.level == WARNING:
            yield self._case("warnings", name, SKIPPED, WARNING, message, alert)
        elif kind in KINDS:
            yield self._case("memory", name, _FAILURE, kind, message, alert)
        elif alert.what == "check" and kind:
            name = self._report.title or "check"
            yield self._case("", name, _ERROR, kind, message, alert)
        elif alert.what == "check":  # a mismatch that nothing accounts for
            yield self._case("", "verdict", _FAILURE, MISMATCH, message, alert)

    def _about(self, what: str, *rules: Rule) -> Alert | None:
        those = (alert for alert in self._alerts if alert.what == what)
        return next((alert for alert in those if not rules or alert.rule in rules), None)

    def _of_run(self, run: Run) -> Iterator[Xml.Element]:
        layout = run.layout
        if failed := run.told_error:
            yield self._case(layout, "layout", _ERROR, *failed, self._about(layout))
        elif run.verdict == SKIPPED:
            yield self._case(layout, "layout", SKIPPED, "refused", str(run.skipped))
        for intermediate in run.intermediates:
            title, status = intermediate.title, intermediate.status
            if not intermediate.heads:
                yield self._case(layout, title, SKIPPED, status, status)
            for head in intermediate.heads:
                yield self._of_head(run, intermediate, head)
        for key, identity in identities(run).items():
            outcome = "" if identity.holds else _FAILURE
            words = residual(identity) if run.first_mismatch else identity_line(identity)
            alert = self._about(key, IDENTITY)
            yield self._case(layout, key, outcome, "identity", words, alert)

    def _of_head(self, run: Run, intermediate: Intermediate, head: Head) -> Xml.Element:
        title, status, first = intermediate.title, head.status, run.first_mismatch
        batch = "" if head.batch is None else f" batch {head.batch}"
        name, counts = f"{title}{batch} head {head.head}", counts_in_words(head)
        if status not in (MISMATCH, INHERITED):
            return self._case(run.layout, name)
        rule, how = WRONG, "is wrong by itself"
        if status == INHERITED:
            rule, how = INHERITS, "only inherits"
        message, more = f"{title} {how}: {counts}", [counts]
        here = title, head.batch, head.head
        if first and rule is WRONG and here == (first.title, first.batch, first.head):
            message = element_line(first)
            more += [line.plain for line in render_reasons(self._report, _WIDTH)]
        return self._case(
            run.layout, name, _FAILURE, status, message, self._about(title, rule), more
        )
