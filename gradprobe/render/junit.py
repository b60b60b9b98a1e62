"""JUnit XML: one test case an intermediate, head and layout, and one an identity; a test suite a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree as Xml

from ..model.documents import Reports
from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Error, Head, Identity, Intermediate, Run
from ..model.memory_finding import WARNING, MemoryFinding
from ..model.report import Report
from ..model.writing import visible
from .notation import (
    cause_in_words,
    counts_in_words,
    element_line,
    errors_of,
    identities,
    identity_line,
    is_silent,
    residual,
    so_far,
    told_apart,
)
from .screen.reasons import render_reasons
from .source_places import Base, Place, base_of, place_of, places_of

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
    """The command that repeats the check follows it, where there is a body."""


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
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, base: Base) -> Xml.Element:
    cases = _unique(_cases(report, base))
    outcomes = Counter(case.outcome for case in cases)
    suite = Xml.Element("testsuite", name=visible(report.name), tests=str(len(cases)))
    for count, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(outcomes[outcome]))
    suite.set("time", _seconds(_milliseconds(report)))
    _add_properties(suite, report, base)
    # Whole milliseconds that differ by 1 at most and add up.
    share, rest = divmod(_milliseconds(report), max(len(cases), 1))
    suite.extend(_case(case, report, share + (at < rest)) for at, case in enumerate(cases))
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
    if places:
        properties |= {"file": base.relative(places[0].file) or places[0].file, "line": places[0].line}
    properties |= {f"kernel {place.name}": base.shorten(place) for place in places[1:]}
    element = Xml.SubElement(suite, "properties")
    for name, value in properties.items():
        if value:
            Xml.SubElement(element, "property", name=visible(name), value=visible(str(value)))


def _case(case: TestCase, report: Report, milliseconds: int) -> Xml.Element:
    classname = f"{report.name}.{case.group}" if case.group else report.name
    names = {"classname": visible(classname), "name": visible(case.name)}
    element = Xml.Element("testcase", names, time=_seconds(milliseconds))
    if case.outcome:
        told = Xml.SubElement(element, case.outcome, type=visible(case.kind), message=visible(case.message))
        again = f"again: {report.reproduce}" if report.reproduce and case.body else ""
        told.text = visible("\n".join(filter(None, (*case.body, again)))) or None
    return element


def _cases(report: Report, base: Base) -> Iterator[TestCase]:
    """JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen."""
    for warned in report.warnings:
        name = f"{warned.kind} {warned.about}".rstrip()
        yield TestCase("warnings", name, "skipped", WARNING, warned.words, (warned.words,))
    cases = _of_report(report, base)
    yield from map(_as_warning, cases) if report.is_warning else cases


def _as_warning(case: TestCase) -> TestCase:
    return replace(case, outcome="skipped", kind=WARNING) if case.outcome in ("failure", "error") else case


def _of_report(report: Report, base: Base) -> Iterator[TestCase]:
    if error := report.own_error:
        body = (error.message, error.way_out)
        yield TestCase("", report.title or "check", "error", error.kind, error.message, body)
    for run in report.runs:
        cases = _of_run(report, run, base)
        yield from map(_as_warning, cases) if run.severity == WARNING else cases
    for finding in report.memory:
        case = _of_memory(report, finding, base)
        yield _as_warning(case) if finding.severity == WARNING else case
    if is_silent(errors_of(report)):
        yield TestCase("", "verdict", "failure", MISMATCH, "the check is a mismatch", ("",))


def _of_run(report: Report, run: Run, base: Base) -> Iterator[TestCase]:
    layout, failed = run.layout, run.told_error
    if failed:
        at = _at([place_of(run.error)], base) if isinstance(run.error, Error) and run.error.file else ()
        yield TestCase(layout, "layout", "error", *failed, (failed[1], *at))
    elif run.verdict == SKIPPED:
        yield TestCase(layout, "layout", "skipped", "refused", str(run.skipped))
    for intermediate in run.intermediates:
        if not intermediate.heads:
            yield TestCase(layout, intermediate.title, "skipped", intermediate.status, intermediate.status)
        for head in intermediate.heads:
            yield _of_head(report, run, intermediate, head, base)
    for key, identity in identities(run).items():
        yield _of_identity(report, run, key, identity, base)


def _of_head(report: Report, run: Run, intermediate: Intermediate, head: Head, base: Base) -> TestCase:
    status, batch = head.status, "" if head.batch is None else f" batch {head.batch}"
    name = f"{intermediate.title}{batch} head {head.head}"
    if status not in (MISMATCH, INHERITED):
        return TestCase(run.layout, name)
    own = status == MISMATCH
    counts = counts_in_words(head)
    message = f"{intermediate.title} {'is wrong by itself' if own else 'only inherits'}: {counts}"
    why = "no: its own inputs do not explain it" if own else "yes: it is right given its wrong inputs, so look at those"
    body = (counts, f"inherited: {why}", *_at(places_of(report, intermediate.name, inherits=not own), base))
    first, here = run.first_mismatch, (intermediate.title, head.batch, head.head)
    if first and own and here == (first.title, first.batch, first.head):
        return TestCase(run.layout, name, "failure", status, element_line(first), (*body, *_why(report)))
    causes = _causes(report, base) if own else ()
    return TestCase(run.layout, name, "failure", status, message, (*body, *causes))


def _of_identity(report: Report, run: Run, key: str, identity: Identity, base: Base) -> TestCase:
    if identity.holds:
        return TestCase(run.layout, key)
    words = residual(identity)
    message = words if run.first_mismatch else identity_line(identity)
    return TestCase(run.layout, key, "failure", "identity", message, (words, *_causes(report, base)))


def _causes(report: Report, base: Base) -> Iterator[str]:
    """A line for each cause and for each line of source that it names."""
    for cause in report.causes:
        yield cause_in_words(cause)
        yield from (f"at: {base.shorten(place)} {place.name}".rstrip() for place in map(place_of, cause.where))


def _of_memory(report: Report, finding: MemoryFinding, base: Base) -> TestCase:
    place = place_of(finding)
    words = (finding.kind, finding.tensor, f"in {finding.kernel}" if finding.kernel else "")
    at = _at([place] if place.file else places_of(report), base)
    causes = [one for one in report.causes if (place.file, place.line) in {(w.file, w.line) for w in one.where}]
    body = (finding.sentence, *at, finding.code, *map(cause_in_words, causes))
    return TestCase("memory", " ".join(filter(None, words)), "failure", finding.kind, finding.sentence, body)


def _at(places: Sequence[Place], base: Base) -> tuple[str, ...]:
    return (f"at: {base.shorten(places[0])} {places[0].name}".rstrip(),) if places else ()


def _unique(cases: Iterable[TestCase]) -> list[TestCase]:
    """Cases whose names differ within their group: two of one name are one to those who read JUnit."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for case in cases:
        seen[case.group, case.name] += 1
        again = seen[case.group, case.name]
        name = f"{case.name} ({again})" if again > 1 else case.name
        found.append(replace(case, name=name))
    return found


def _milliseconds(report: Report) -> int:
    return round(1000 * report.seconds.get("total", 0.0))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
