"""What is wrong in documents, one alert a finding and the worst first: what SARIF and annotations show."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..diagnosis import NAMED
from ..judging.tally import INHERITED, MISMATCH
from ..severity import WARNING
from ..verdict import SKIPPED
from . import rules
from .documents import (
    Document,
    by_status,
    check_name,
    counts_in_words,
    errors_of,
    first_line,
    heads_in_words,
    identities,
    identity_line,
    is_silent,
    memory_findings,
    own_error,
    residual,
    right_when_contiguous,
    run_error,
    times,
    told_apart,
    wrong_heads,
)
from .places import Place, place_of_finding, places_of
from .rules import Rule


@dataclass(frozen=True)
class Alert:
    """One finding. The same finding in several layouts is one."""

    rule: Rule
    check: str
    """The target, and the title of its case."""
    what: str
    """What it is about: an intermediate, an identity, a tensor and its kernel."""
    title: str
    """In a few words."""
    sentences: tuple[str, ...]
    places: tuple[Place, ...]
    """Where to look, the best first."""
    ratio: float = float("inf")
    """The worst error as a multiple of what is allowed."""
    is_first: bool = False
    """Whether it is the document's first mismatch."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain values for programs."""
    level: str = ""
    """SARIF's: that of the rule, or lower where it is told as a warning."""

    @property
    def fingerprint(self) -> str:
        """The same for the same finding of the same check, wherever its line has moved and however large it is."""
        lower = () if self.level == self.rule.level else (self.level,)
        words = "\0".join((self.rule.id, self.check, self.what, *lower))
        return hashlib.sha256(words.encode(errors="replace")).hexdigest()


def alerts_of(documents: Iterable[Document]) -> list[Alert]:
    """Every finding of the documents, the worst first.

    That is: by the rank of their rule, then what comes first in dataflow order, then by ratio.
    """
    found = [
        alert for document in told_apart(documents) for alert in (*_errors(errors_of(document)), *_warnings(document))
    ]
    return sorted(found, key=lambda alert: (-alert.rule.rank, not alert.is_first, -alert.ratio))


def _errors(document: Document) -> Iterator[Alert]:
    if error := own_error(document):
        yield _failed(document, error)
    for name, found in by_status(document, MISMATCH):
        yield _wrong(document, name, found)
    for name, found in by_status(document, INHERITED):
        yield _inherited(document, name, found)
    yield from _broken(document)
    yield from (_of_memory(document, finding) for finding in memory_findings(document))
    yield from _of_runs(document)
    if is_silent(document):
        sentences = ["The check is a mismatch; its report says no more."]
        yield _alert(document, rules.WRONG, "check", "The check is a mismatch", sentences, places_of(document))


def _warnings(document: Document) -> Iterator[Alert]:
    """What a document tells and does not count, at the lines that were seen in its layouts."""
    for warned in document.get("warnings") or ():
        rule = rules.OF_WARNING.get(warned["kind"]) or rules.OF_MEMORY[warned["kind"]]
        about, layouts = warned["about"], list(warned["layouts"])
        seen = [place_of_finding(one) for one in memory_findings(document) if one.get("layout") in (None, *layouts)]
        places = dict.fromkeys([*(place for place in seen if place.file), *places_of(document)])
        sentences = [f"{warned['words']}.", f"{_layouts(layouts)}." if layouts else ""]
        title = rule.summary + (f": {about}" if about else "")
        alert = _alert(document, rule, about, title, sentences, tuple(places), kind=warned["kind"], layouts=layouts)
        yield replace(alert, level=WARNING)


def _alert(
    document: Document,
    rule: Rule,
    what: str,
    title: str,
    sentences: Sequence[str],
    places: Sequence[Place],
    worst: float = float("inf"),
    **details: Any,
) -> Alert:
    """With what every alert of a document says."""
    check, again = check_name(document), document.get("reproduce")
    told = (*filter(None, sentences), *([f"Again: {again}"] if again else []))
    is_first = rule is rules.WRONG and what == (document.get("first_mismatch") or {}).get("intermediate")
    details = {"check": check, **details}
    return Alert(rule, check, what, title, told, tuple(places), worst, is_first, details, rule.level)


def _wrong(document: Document, name: str, found: Sequence[tuple[Document, Document]]) -> Alert:
    first = next((run["first_mismatch"] for run, _ in found if _begins_with(run, name)), None)
    run, entry = _worst(found)
    sentences = [f"{name} is wrong by itself: its own inputs do not explain it.", _extent(found, MISMATCH)]
    if right_when_contiguous(document):
        sentences.append("Right when contiguous: the arithmetic is right, an address (a stride) is not.")
    sentences += [_reason(diagnosis) for diagnosis in list(document.get("diagnoses") or ())[:1]]
    sentences += [first_line(first)] if first else []
    return _alert(
        document, rules.WRONG, name, f"{name} is wrong by itself", sentences, places_of(document, name),
        times(entry["max_budget_ratio"]), **_details(found, MISMATCH),
    )  # fmt: skip


def _reason(diagnosis: Document) -> str:
    share = f"explains {diagnosis['explained']:.0%} of what is wrong"
    cause = "Cause" if diagnosis["explained"] >= NAMED else "Consistent with"
    fix = f" Fix: {diagnosis['fix']}." if diagnosis.get("fix") else ""
    return f"{cause}: {diagnosis['summary']} ({share}).{fix}"


def _begins_with(run: Document, name: str) -> bool:
    return (run.get("first_mismatch") or {}).get("intermediate") == name


def _inherited(document: Document, name: str, found: Sequence[tuple[Document, Document]]) -> Alert:
    sentences = [f"{name} only inherits: it is wrong, but right given its wrong inputs.", _extent(found, INHERITED)]
    return _alert(
        document, rules.INHERITED, name, f"{name} only inherits its error", sentences, places_of(document),
        times(_worst(found)[1]["max_budget_ratio"]), **_details(found, INHERITED),
    )  # fmt: skip


def _worst(found: Sequence[tuple[Document, Document]]) -> tuple[Document, Document]:
    return max(found, key=lambda pair: times(pair[1]["max_budget_ratio"]))


def _extent(found: Sequence[tuple[Document, Document]], status: str) -> str:
    """In which layouts and heads, and how much."""
    run, entry = _worst(found)
    layouts = _layouts([one["layout"] for one, _ in found])
    return f"{layouts}: {heads_in_words(entry, status)}; {counts_in_words(entry)} in {run['layout']}."


def _details(found: Sequence[tuple[Document, Document]], status: str) -> dict[str, Any]:
    run, entry = _worst(found)
    head = next(iter(wrong_heads(entry, status)), {"batch": None, "head": None})
    return {
        "intermediate": entry["name"], "layout": run["layout"], "layouts": [one["layout"] for one, _ in found],
        "batch": head["batch"], "head": head["head"], "ratio": entry["max_budget_ratio"],
        "mismatched": entry["mismatched"], "total": entry["total"],
    }  # fmt: skip


def _broken(document: Document) -> Iterator[Alert]:
    """One alert an identity, with the layout in which it is furthest off."""
    found: dict[str, list[tuple[float, str, Document]]] = {}
    for run in document["runs"]:
        for key, invariant in identities(run).items():
            if not invariant["holds"]:
                found.setdefault(key, []).append((residual(invariant)[1], run["layout"], invariant))
    for key, broken in found.items():
        by, layout, invariant = max(broken, key=lambda one: one[0])
        layouts = [one[1] for one in broken]
        sentences = [f"{residual(invariant)[0]} in {layout}.", f"{_layouts(layouts)}." if len(layouts) > 1 else ""]
        sentences += [] if document.get("first_mismatch") else [identity_line(key, invariant)]
        yield _alert(
            document, rules.IDENTITY, key, f"{invariant['name']} is broken", sentences, places_of(document), by,
            identity=key, layout=layout, layouts=layouts, residual=invariant["residual"], budget=invariant["budget"],
        )  # fmt: skip


def _of_memory(document: Document, finding: Document) -> Alert:
    rule, place = rules.OF_MEMORY[finding["kind"]], place_of_finding(finding)
    tensor, kernel, code = (finding.get(key) or "" for key in ("tensor", "kernel", "code"))
    about = " in ".join(filter(None, (tensor, kernel)))
    places = dict.fromkeys([*([place] if place.file else []), *places_of(document)])
    sentences = [finding["sentence"], f"The line: {code}" if code else ""]
    return _alert(
        document, rule, f"{about}: {code}", f"{rule.summary}: {about}", sentences, tuple(places),
        kind=finding["kind"], tensor=tensor, kernel=kernel,
    )  # fmt: skip


def _of_runs(document: Document) -> Iterator[Alert]:
    """Layouts that came to an error, and those that the target refused."""
    for run in document["runs"]:
        layout, failed = run["layout"], run_error(run)
        if failed:
            told = {"kind": failed[0], "message": f"{layout}: {failed[1]}"}
            own = run["error"] if isinstance(run.get("error"), Mapping) else {}
            yield _failed(document, {**own, **told}, layout)
        elif run["verdict"] == SKIPPED:
            sentences = [f"Layout {layout} was skipped: {run['skipped']}"]
            title, places = f"Layout {layout} was refused", places_of(document)
            yield _alert(document, rules.REFUSED, layout, title, sentences, places, layout=layout)


def _failed(document: Document, error: Document, what: str = "check") -> Alert:
    rule = rules.OF_FAILURE.get(error["kind"], rules.TOOL)
    # A wrong command is no fault of any file.
    places = () if rule in (rules.USAGE, rules.TOOL, rules.REFERENCE) else places_of(document)
    places = (place_of_finding(error), *places) if error.get("file") else places
    sentences = [error["message"], error.get("way_out") or ""]
    return _alert(document, rule, what, rule.summary, sentences, places, kind=error["kind"])


def _layouts(layouts: Sequence[str]) -> str:
    unique = list(dict.fromkeys(layouts))
    shown = "; ".join(unique[:8]) + (f" and {len(unique) - 8} more" if len(unique) > 8 else "")
    return f"Layout{'s' if len(unique) > 1 else ''} {shown}"
