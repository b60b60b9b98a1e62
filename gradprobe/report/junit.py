"""JUnit XML: one test case an intermediate, head and layout, and one an identity; a test suite a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree as Xml

from ..judging.tally import INHERITED, MISMATCH
from ..severity import WARNING
from ..verdict import SKIPPED
from .documents import (
    Document,
    check_name,
    counts_in_words,
    errors_of,
    first_line,
    head_name,
    identities,
    identity_line,
    is_silent,
    is_warning,
    memory_findings,
    own_error,
    residual,
    run_error,
    told_apart,
)
from .places import Base, Place, place_of_finding, places_of
from .text import visible


@dataclass(frozen=True)
class Case:
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


def as_junit(documents: Sequence[Document], base: Base) -> str:
    """The documents as XML that Jenkins' schema takes (junit-10.xsd).

    A check runs and compares all of its heads at once: its seconds are shared out among its test cases, equally, so
    that the times of every level add up.
    """
    root = Xml.Element("testsuites", name="gradprobe")
    suites = [_suite(document, base) for document in told_apart(documents)]
    root.extend(suites)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in suites)))
    root.set("time", _seconds(sum(_milliseconds(document) for document in documents)))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(document: Document, base: Base) -> Xml.Element:
    cases = _unique(_cases(document, base))
    outcomes = Counter(case.outcome for case in cases)
    suite = Xml.Element("testsuite", name=visible(check_name(document)), tests=str(len(cases)))
    for count, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(outcomes[outcome]))
    suite.set("time", _seconds(_milliseconds(document)))
    _add_properties(suite, document, base)
    for case, share in zip(cases, _shares(_milliseconds(document), len(cases)), strict=True):
        suite.append(_case(case, check_name(document), share))
    return suite


def _add_properties(suite: Xml.Element, document: Document, base: Base) -> None:
    target = document.get("target") or {}
    properties = {name: target.get(name) for name in ("name", "family", "backend", "sha256")}
    properties |= {"title": document.get("title"), "reproduce": document.get("reproduce")}
    places = places_of(document)
    if places:
        properties |= {"file": base.relative(places[0].file) or places[0].file, "line": places[0].line}
    properties |= {f"kernel {place.name}": base.told(place) for place in places[1:]}
    element = Xml.SubElement(suite, "properties")
    for name, value in properties.items():
        if value:
            Xml.SubElement(element, "property", name=visible(name), value=visible(str(value)))


def _case(case: Case, target: str, milliseconds: int) -> Xml.Element:
    classname = f"{target}.{case.group}" if case.group else target
    element = Xml.Element(
        "testcase", classname=visible(classname), name=visible(case.name), time=_seconds(milliseconds)
    )
    if case.outcome:
        told = Xml.SubElement(element, case.outcome, type=visible(case.kind), message=visible(case.message))
        told.text = visible("\n".join(filter(None, case.body))) or None
    return element


def _cases(document: Document, base: Base) -> Iterator[Case]:
    """JUnit knows no warnings: they are skipped test cases, which fail nothing and are seen."""
    for warned in document.get("warnings") or ():
        name = f"{warned['kind']} {warned['about']}".rstrip()
        yield Case("warnings", name, "skipped", WARNING, warned["words"], (warned["words"], _again(document)))
    cases = _of_document(document, base)
    yield from (_as_warning(case) for case in cases) if is_warning(document) else cases


def _as_warning(case: Case) -> Case:
    return replace(case, outcome="skipped", kind=WARNING) if case.outcome in ("failure", "error") else case


def _of_document(document: Document, base: Base) -> Iterator[Case]:
    if error := own_error(document):
        body = (error["message"], *filter(None, [error.get("way_out")]), _again(document))
        yield Case("", document.get("title") or "check", "error", error["kind"], error["message"], body)
    for run in document["runs"]:
        cases = _of_run(document, run, base)
        yield from (_as_warning(case) for case in cases) if is_warning(run) else cases
    for finding in memory_findings(document):
        case = _of_memory(document, finding, base)
        yield _as_warning(case) if is_warning(finding) else case
    if is_silent(errors_of(document)):
        yield Case("", "verdict", "failure", MISMATCH, "the check is a mismatch", (_again(document),))


def _of_run(document: Document, run: Document, base: Base) -> Iterator[Case]:
    layout, failed = run["layout"], run_error(run)
    if failed:
        error = run.get("error")
        at = _at([place_of_finding(error)], base) if isinstance(error, Mapping) and error.get("file") else ()
        yield Case(layout, "layout", "error", *failed, (failed[1], *at, _again(document)))
    elif run["verdict"] == SKIPPED:
        yield Case(layout, "layout", "skipped", "refused", str(run["skipped"]))
    for entry in run.get("intermediates", ()):
        if not entry["heads"]:
            yield Case(layout, entry["name"], "skipped", entry["status"], entry["status"])
        for head in entry["heads"]:
            yield _of_head(document, run, entry, head, base)
    for key, invariant in identities(run).items():
        yield _of_identity(document, run, key, invariant)


def _of_head(document: Document, run: Document, entry: Document, head: Document, base: Base) -> Case:
    name, status = head_name(entry["name"], head), head["status"]
    if status not in (MISMATCH, INHERITED):
        return Case(run["layout"], name)
    own = status == MISMATCH
    counts = counts_in_words(head)
    message = f"{entry['name']} {'is wrong by itself' if own else 'only inherits'}: {counts}"
    why = "no: its own inputs do not explain it" if own else "yes: it is right given its wrong inputs, so look at those"
    places = places_of(document, entry["name"] if own else None)
    body = (counts, f"inherited: {why}", *_at(places, base), _again(document))
    return Case(run["layout"], name, "failure", status, _first_line_of(run, entry, head) or message, body)


def _first_line_of(run: Document, entry: Document, head: Document) -> str:
    """The greppable line, where the run's first mismatch lies in this head."""
    first = run.get("first_mismatch") or {}
    here = (entry["name"], head["batch"], head["head"])
    if head["status"] == MISMATCH and here == (first.get("intermediate"), first.get("batch"), first.get("head")):
        return first_line(first)
    return ""


def _of_identity(document: Document, run: Document, key: str, invariant: Document) -> Case:
    if invariant["holds"]:
        return Case(run["layout"], key)
    words = residual(invariant)[0]
    first = run.get("first_mismatch")
    return Case(
        run["layout"], key, "failure", "identity", words if first else identity_line(key, invariant),
        (words, _again(document)),
    )  # fmt: skip


def _of_memory(document: Document, finding: Document, base: Base) -> Case:
    place = place_of_finding(finding)
    words = (finding["kind"], finding.get("tensor") or "", f"in {finding['kernel']}" if finding.get("kernel") else "")
    at = _at([place] if place.file else places_of(document), base)
    body = (finding["sentence"], *at, *filter(None, [finding.get("code")]), _again(document))
    return Case("memory", " ".join(filter(None, words)), "failure", finding["kind"], finding["sentence"], body)


def _at(places: Sequence[Place], base: Base) -> tuple[str, ...]:
    return (f"at: {base.told(places[0])} {places[0].name}".rstrip(),) if places else ()


def _again(document: Document) -> str:
    return f"again: {document['reproduce']}" if document.get("reproduce") else ""


def _unique(cases: Iterable[Case]) -> list[Case]:
    """Cases whose names differ within their group: two of one name are one to those who read JUnit."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for case in cases:
        seen[case.group, case.name] += 1
        again = seen[case.group, case.name]
        name = f"{case.name} ({again})" if again > 1 else case.name
        found.append(Case(case.group, name, case.outcome, case.kind, case.message, case.body))
    return found


def _milliseconds(document: Document) -> int:
    return round(1000 * float((document.get("seconds") or {}).get("total", 0.0)))


def _shares(whole: int, parts: int) -> list[int]:
    """Whole numbers that differ by 1 at most and add up."""
    share, rest = divmod(whole, parts) if parts else (0, 0)
    return [share + (at < rest) for at in range(parts)]


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
