"""JUnit XML: a test suite a check; a test case an intermediate, head and layout, or an identity."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from xml.etree import ElementTree as Xml

from ..model.documents import Reports
from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Head, Run
from ..model.memory_finding import KINDS, WARNING
from ..model.report import Report
from ..model.writing import visible
from .alerts import INHERITS, Alert, alerts_in
from .notation import counts_in_words, element_line, identities, identity_line, so_far
from .source_places import Base, base_of

_Lines = tuple[str, ...]
_FAILURE, _ERROR = "failure", "error"
_HOW = {MISMATCH: "is wrong by itself", INHERITED: "only inherits"}
_COUNTED = {"failures": _FAILURE, "errors": _ERROR, "skipped": SKIPPED}


@dataclass(frozen=True)
class _TestCase:
    group: str
    name: str
    outcome: str = ""
    kind: str = ""
    message: str = ""
    lines: _Lines = ()


def text(several: Reports, code: int | None) -> str:
    """XML that Jenkins' schema takes (junit-10.xsd)."""
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
    suite, seen = Xml.Element("testsuite", name=visible(report.name)), Counter[str]()
    for case in _cases(report, base):
        of = visible(f"{report.name}.{case.group}" if case.group else report.name)
        name = visible(case.name)
        seen[known := f"{of} {name}"] += 1
        if seen[known] > 1:
            name += f" ({seen[known]})"
        element = Xml.SubElement(suite, "testcase", classname=of, name=name)
        if case.outcome:
            about = {"type": visible(case.kind), "message": visible(case.message)}
            text = visible("\n".join(case.lines))
            Xml.SubElement(element, case.outcome, about).text = text or None
    suite.set("tests", str(len(suite)))
    for count, outcome in _COUNTED.items():
        suite.set(count, str(len(suite.findall(f"*/{outcome}"))))
    suite.set("time", f"{report.seconds.get('total', 0.0):.3f}")
    return suite


def _cases(report: Report, base: Base) -> Iterator[_TestCase]:
    alerts = list(alerts_in(report))
    for alert in alerts:
        yield from _of_alert(report, alert, base)
    about = {(alert.what, alert.rule is INHERITS): _lines(alert, base) for alert in alerts}
    for run in report.runs:
        is_mild = report.is_warning or run.severity == WARNING
        for case in _of_run(run, about):
            # JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen.
            is_told = is_mild and case.outcome in (_FAILURE, _ERROR)
            yield replace(case, outcome=SKIPPED, kind=WARNING) if is_told else case


def _lines(alert: Alert, base: Base) -> _Lines:
    at = (f"at: {base.shorten(place)} {place.name}".rstrip() for place in alert.places[:1])
    return *alert.sentences, *at


def _of_alert(report: Report, alert: Alert, base: Base) -> Iterator[_TestCase]:
    kind, told = alert.kind, (alert.sentences[0], _lines(alert, base))
    name = f"{kind} {alert.about}".rstrip()
    if alert.level == WARNING:
        yield _TestCase("warnings", name, SKIPPED, WARNING, *told)
    elif kind in KINDS:
        yield _TestCase("memory", name, _FAILURE, kind, *told)
    elif alert.what == "check" and kind:
        yield _TestCase("", report.title or "check", _ERROR, kind, *told)
    elif alert.what == "check":
        yield _TestCase("", "verdict", _FAILURE, MISMATCH, *told)


def _of_run(run: Run, about: Mapping[tuple[str, bool], _Lines]) -> Iterator[_TestCase]:
    layout = run.layout
    if failed := run.told_error:
        yield _TestCase(layout, "layout", _ERROR, *failed, about.get((layout, False), ()))
    elif run.verdict == SKIPPED:
        yield _TestCase(layout, "layout", SKIPPED, "refused", str(run.skipped))
    for intermediate in run.intermediates:
        title, status = intermediate.title, intermediate.status
        if not intermediate.heads:
            yield _TestCase(layout, title, SKIPPED, status, status)
        for head in intermediate.heads:
            lines = about.get((title, head.status == INHERITED), ())
            yield _of_head(run, title, head, lines)
    for key, identity in identities(run).items():
        told = "identity", identity_line(identity), about.get((key, False), ())
        yield _TestCase(layout, key, "" if identity.holds else _FAILURE, *told)


def _of_head(run: Run, title: str, head: Head, lines: _Lines) -> _TestCase:
    batch = "" if head.batch is None else f" batch {head.batch}"
    name, counts = f"{title}{batch} head {head.head}", counts_in_words(head)
    if head.status not in _HOW:
        return _TestCase(run.layout, name)
    message, first = f"{title} {_HOW[head.status]}: {counts}", run.first_mismatch
    here = title, head.batch, head.head, head.status
    if first and here == (first.title, first.batch, first.head, MISMATCH):
        message = element_line(first)
    return _TestCase(run.layout, name, _FAILURE, head.status, message, (counts, *lines))
