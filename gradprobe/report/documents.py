"""What report documents say, in the words that every form for CI uses. A document is a dict of gradprobe.report/1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..judging.tally import MATCH, MISMATCH
from ..severity import WARNING
from ..spans import in_words, plural, spans
from .text import greppable, ratio

Document = Mapping[str, Any]
"""A report, an error report, or a part of one."""
FAILED = ("error", "crashed")
"""The verdicts of a run that came to no result."""


def check_name(document: Document) -> str:
    """What was checked, with the title of the case where the check is one of several: `lazy (gqa)`."""
    name = (document.get("target") or {}).get("name") or "gradprobe"
    title = document.get("title")
    return f"{name} ({title})" if title else str(name)


def is_warning(part: Document) -> bool:
    """Whether a check, a run or a finding is shown and does not count."""
    return part.get("severity") == WARNING


def errors_of(document: Document) -> Document:
    """The document without what does not count: runs, findings about memory, or all of a check that is a warning."""
    if is_warning(document):
        return {**document, "verdict": MATCH, "runs": [], "error": None, "strides": None, "first_mismatch": None}
    runs = [run | {"memory": _counted(run.get("memory"))} for run in _counted(document["runs"])]
    strides = document.get("strides")
    more = {"strides": {**strides, "findings": _counted(strides.get("findings"))}} if strides else {}
    return {**document, "runs": runs, **more}


def _counted(parts: Sequence[Document] | None) -> list[dict[str, Any]]:
    return [dict(part) for part in parts or () if not is_warning(part)]


def told_apart(documents: Iterable[Document]) -> list[Document]:
    """The documents, where two would go by one name the later ones with a number in their titles."""
    found: dict[str, Document] = {}
    for document in documents:
        named, number = document, 1
        while check_name(named) in found:
            number += 1
            named = {**document, "title": f"{document.get('title') or ''} {number}".strip()}
        found[check_name(named)] = named
    return list(found.values())


def names_of(document: Document) -> list[str]:
    """The intermediates of all runs, in dataflow order."""
    return list(dict.fromkeys(entry["name"] for run in document["runs"] for entry in run.get("intermediates", ())))


def times(value: float | None) -> float:
    """A multiple of the budget; infinite where it is not finite."""
    return float("inf") if value is None else value


def first_line(first: Document) -> str:
    """The one greppable line of a document's or a run's first mismatch."""
    where = [first[axis] for axis in ("batch", "head", "row", "col")]
    return greppable(first["intermediate"], where, first["tile"], first["actual"], first["expected"], _times_of(first))


def _times_of(first: Document) -> float:
    if None in (first["actual"], first["expected"]) or not first["budget"]:
        return float("inf")
    return float(abs(first["actual"] - first["expected"]) / first["budget"])


def identities(run: Document) -> dict[str, Document]:
    """The target's identities by key, I1 to I10 or "repeat"; of one tried more than once, the one that is broken."""
    found: dict[str, Document] = {}
    for invariant in run.get("invariants", ()):
        key = invariant["name"].split()[0]
        if invariant.get("of", "target") == "target" and (key not in found or not invariant["holds"]):
            found[key] = invariant
    return found


def residual(invariant: Document) -> tuple[str, float]:
    """How far an identity is from holding, in words and as a multiple of what it is allowed."""
    left, budget = invariant["residual"], invariant["budget"]
    by = left / budget if left is not None and budget else float("inf")
    stood = "a value that is not finite" if left is None else f"{left:.4g}"
    return f"{invariant['name']} is off by {stood}, {ratio(by)}x what is allowed", by


def identity_line(key: str, invariant: Document) -> str:
    """The greppable line of a broken identity, which has no place."""
    return greppable(key, (None,) * 4, (None, None), invariant["residual"], 0.0, residual(invariant)[1])


def head_name(name: str, head: Document) -> str:
    """`dS batch 0 head 1`; without a batch where the intermediate has none."""
    batch = "" if head["batch"] is None else f" batch {head['batch']}"
    return f"{name}{batch} head {head['head']}"


def wrong_heads(entry: Document, status: str) -> list[Document]:
    """The heads of an intermediate that have a status."""
    return [head for head in entry["heads"] if head["status"] == status]


def heads_in_words(entry: Document, status: str) -> str:
    """`head 1 of 4`, `every head`, of those with a status."""
    wrong = sorted({head["head"] for head in wrong_heads(entry, status)})
    count = len({head["head"] for head in entry["heads"]})
    if len(wrong) == count:
        return "every head" if count > 1 else "the only head"
    return f"head{'s' if len(wrong) != 1 else ''} {in_words(spans(wrong))} of {count}"


def counts_in_words(part: Document) -> str:
    """`72 elements wrong, worst 51x what is allowed, rows 0-71`, of an intermediate or a head."""
    worst = ratio(times(part["max_budget_ratio"]))
    words = f"{plural(part['mismatched'], 'element')} wrong, worst {worst}x what is allowed"
    if part.get("rows"):
        words += f", rows {in_words([(first, last) for first, last in part['rows']])}"
    return words


def by_status(document: Document, status: str) -> Iterator[tuple[str, list[tuple[Document, Document]]]]:
    """Each intermediate that has a status somewhere, with the (run, entry) pairs in which it has."""
    for name in names_of(document):
        found = [
            (run, entry)
            for run in document["runs"]
            for entry in run.get("intermediates", ())
            if entry["name"] == name and entry["status"] == status
        ]
        if found:
            yield name, found


def blamed(run: Document, status: str) -> list[str]:
    """The intermediates of a run with a status."""
    return [entry["name"] for entry in run.get("intermediates", ()) if entry["status"] == status]


def run_error(run: Document) -> tuple[str, str] | None:
    """Kind and message of a run that came to an error; None for any other."""
    if run["verdict"] not in FAILED:
        return None
    error = run.get("error") or run.get("skipped") or "the run came to an error"
    if isinstance(error, Mapping):
        return str(error.get("kind") or "TargetFailure"), str(error.get("message") or "")
    return "TargetFailure", str(error)


def own_error(document: Document) -> Document | None:
    """What kept a check from its end; None where nothing did, or where a run says it itself."""
    error = document.get("error")
    return None if not error or any(run["verdict"] in FAILED for run in document["runs"]) else error


def right_when_contiguous(document: Document) -> bool:
    """Whether the arithmetic is right and an address is not."""
    # A run of other values bears the name of its layout with ", ..." behind it.
    verdicts = {run["layout"]: run["verdict"] for run in document["runs"] if ", " not in run["layout"]}
    return verdicts.get("contiguous") == "match" and MISMATCH in verdicts.values()


def memory_findings(document: Document) -> Sequence[Document]:
    """What was seen of accesses, guard bands and outputs."""
    if document.get("strides"):
        return document["strides"].get("findings") or ()
    found = [finding for run in document["runs"] for finding in run.get("memory") or ()]
    return list({(one["kind"], one["tensor"], one["file"], one["line"]): one for one in reversed(found)}.values())


def is_silent(document: Document) -> bool:
    """Whether a mismatch was found that no intermediate, identity or memory finding of the document accounts for."""
    seen = memory_findings(document) or any(
        MISMATCH in (entry["status"] for entry in run.get("intermediates", ()))
        or not all(invariant["holds"] for invariant in identities(run).values())
        for run in document["runs"]
    )
    return document["verdict"] == MISMATCH and not seen
