"""JUnit XML: one test case an intermediate, head and layout, and one an identity; a test suite a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree as Xml

from ..model.documents import Reports
from ..model.layout_run import INHERITED, MISMATCH, SKIPPED, Head, Identity, Intermediate, Run
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
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"
    )


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
        again = seen[case.group, case.name]
        name = f"{case.name} ({again})" if again > 1 else case.name
        suite.append(_element(replace(case, name=name), report, share + (at < rest)))
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
        properties |= {
            "file": base.relative(places[0].file) or places[0].file,
            "line": places[0].line,
        }
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
        told = Xml.SubElement(
            element, case.outcome, type=visible(case.kind), message=visible(case.message)
        )
        again = f"again: {report.reproduce}" if report.reproduce and case.body else ""
        told.text = visible("\n".join(filter(None, (*case.body, again)))) or None
    return element


def _mild(case: TestCase, is_mild: bool) -> TestCase:
    """JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen."""
    if is_mild and case.outcome in ("failure", "error"):
        return replace(case, outcome="skipped", kind=WARNING)
    return case


class _SuiteCases:
    """The test cases of one check."""

    def __init__(self, report: Report, base: Base) -> None:
        self._report, self._base = report, base

    def all(self) -> Iterator[TestCase]:
        report = self._report
        for warned in report.warnings:
            name = f"{warned.kind} {warned.about}".rstrip()
            yield TestCase("warnings", name, "skipped", WARNING, warned.words, (warned.words,))
        if error := report.own_error:
            body = (error.message, error.way_out)
            case = TestCase("", report.title or "check", "error", error.kind, error.message, body)
            yield _mild(case, report.is_warning)
        for run in report.runs:
            for case in self._of_run(run):
                yield _mild(case, report.is_warning or run.severity == WARNING)
        for finding in report.memory:
            yield _mild(
                self._of_memory(finding), report.is_warning or finding.severity == WARNING
            )
        if is_silent(errors_of(report)):
            yield TestCase("", "verdict", "failure", MISMATCH, "the check is a mismatch", ("",))

    def _of_run(self, run: Run) -> Iterator[TestCase]:
        if failed := run.told_error:
            yield TestCase(run.layout, "layout", "error", *failed, (failed[1],))
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
            yield self._of_identity(run, key, identity)

    def _of_head(self, run: Run, intermediate: Intermediate, head: Head) -> TestCase:
        status, batch = head.status, "" if head.batch is None else f" batch {head.batch}"
        name = f"{intermediate.title}{batch} head {head.head}"
        if status not in (MISMATCH, INHERITED):
            return TestCase(run.layout, name)
        own, counts = status == MISMATCH, counts_in_words(head)
        message = (
            f"{intermediate.title} {'is wrong by itself' if own else 'only inherits'}: {counts}"
        )
        why = (
            "no: its own inputs do not explain it"
            if own
            else "yes: right given its wrong inputs, so look at those"
        )
        places = places_of(self._report, intermediate.name, inherits=not own)
        body = (counts, f"inherited: {why}", *self._at(places[:1]))
        first, here = run.first_mismatch, (intermediate.title, head.batch, head.head)
        if first and own and here == (first.title, first.batch, first.head):
            message, body = element_line(first), (*body, *_why(self._report))
        elif own:
            body = (*body, *self._causes())
        return TestCase(run.layout, name, "failure", status, message, body)

    def _of_identity(self, run: Run, key: str, identity: Identity) -> TestCase:
        if identity.holds:
            return TestCase(run.layout, key)
        words = residual(identity)
        message = words if run.first_mismatch else identity_line(identity)
        return TestCase(run.layout, key, "failure", "identity", message, (words, *self._causes()))

    def _of_memory(self, finding: MemoryFinding) -> TestCase:
        place = place_of(finding)
        name = " ".join(
            filter(
                None, (finding.kind, finding.tensor, finding.kernel and f"in {finding.kernel}")
            )
        )
        at = self._at([place] if place.file else places_of(self._report)[:1])
        return TestCase(
            "memory",
            name,
            "failure",
            finding.kind,
            finding.sentence,
            (finding.sentence, *at, finding.code),
        )

    def _causes(self) -> Iterator[str]:
        """A line for each cause and for each line of source that it names."""
        for cause in self._report.causes:
            yield cause_in_words(cause)
            yield from self._at(list(map(place_of, cause.where)))

    def _at(self, places: Sequence[Place]) -> list[str]:
        return [f"at: {self._base.shorten(place)} {place.name}".rstrip() for place in places]


def _milliseconds(report: Report) -> int:
    return round(1000 * report.seconds.get("total", 0.0))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
