"""A Markdown table of documents, for the summary of a GitHub step: a row a check and layout, the worst first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..judging.tally import INHERITED, MISMATCH
from ..severity import WARNING
from ..spans import plural
from ..verdict import SKIPPED
from .documents import (
    FAILED,
    Document,
    blamed,
    check_name,
    errors_of,
    first_line,
    identities,
    is_warning,
    memory_findings,
    own_error,
    run_error,
    times,
    told_apart,
)
from .places import Base, places_of
from .text import ratio, visible

# GitHub drops a summary that is larger.
MOST_BYTES = 2**20
_ORDER = (*FAILED, MISMATCH, WARNING, SKIPPED, "match")
_HEAD = "| verdict | check | layout | wrong by itself | only inherited | worst | what | where |\n" + "|--" * 8 + "|\n"
# Signs of Markdown, HTML, mentions, issues, emoji and links.
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~$@:]|(?<=www)\.")


@dataclass(frozen=True)
class Row:
    """One check in one layout, or what is told of the check as a whole."""

    verdict: str
    ratio: float
    cells: tuple[str, ...]
    """Plain text, what follows the verdict."""


def as_markdown(documents: Sequence[Document], base: Base, most: int = MOST_BYTES) -> str:
    """A heading, a table, and the commands that repeat what does not match, in `most` bytes of UTF-8 at most.

    Where that is too little, the rows at the end are left out, and the last line says how many; "" where not even the
    heading has room.
    """
    documents = told_apart(documents)
    rows = sorted(
        (row for document in documents for row in _rows(document, base)),
        key=lambda row: (_ORDER.index(row.verdict), -row.ratio),
    )
    lines = [_row(row) for row in rows]
    again = [f"again: <code>{_plain(document['reproduce'])}</code><br>\n" for document in _not_right(documents)]
    return _within(_heading(documents) + _HEAD, lines, ["\n", *again] if again else [], most)


def _not_right(documents: Sequence[Document]) -> Iterator[Document]:
    for document in documents:
        if errors_of(document)["verdict"] != "match" and document.get("reproduce"):
            yield document


def _heading(documents: Sequence[Document]) -> str:
    verdicts = Counter(document["verdict"] for document in documents if not is_warning(document))
    verdicts[WARNING] = sum(len(document.get("warnings") or ()) for document in documents)
    words = [f"{verdicts[word]} {said}" for word, said in (
        ("mismatch", "wrong"), ("error", "not checked"), ("match", "right"),
        (WARNING, "warned of")) if verdicts[word]]  # fmt: skip
    return f"### gradprobe: {plural(len(documents), 'check')}, {', '.join(words)}\n\n"


def _within(head: str, rows: Sequence[str], tail: Sequence[str], most: int) -> str:
    """As many rows as there is room for, and then as much of the tail."""
    text, left = [head], most - len(head.encode()) - 120  # the last line's own length
    if left < 0:
        return ""
    for at, line in enumerate((*rows, *tail)):
        left -= len(line.encode())
        if left < 0:
            rest = len(rows) - at
            said = f"{plural(rest, 'row')} more" if rest > 0 else "Some commands"
            return "".join(text) + f"\n{said} left out: a summary holds {most:,} bytes at most.\n"
        text.append(line)
    return "".join(text)


def _rows(document: Document, base: Base) -> Iterator[Row]:
    for row, part in _parts(document, base):
        is_mild = is_warning(document) or is_warning(part)
        yield replace(row, verdict=WARNING) if is_mild and row.verdict in (MISMATCH, *FAILED) else row


def _parts(document: Document, base: Base) -> Iterator[tuple[Row, Document]]:
    """Each row with the part of the document that it tells."""
    check = check_name(document)
    place = next(iter(places_of(document)), None)
    where = base.told(place) if place else ""
    for warned in document.get("warnings") or ():
        cells = (check, "; ".join(warned["layouts"]), "", "", "", warned["words"], where)
        yield Row(WARNING, float("inf"), cells), warned
    if error := own_error(document):
        words = " ".join(filter(None, (error["message"], error.get("way_out"))))
        yield Row("error", float("inf"), (check, "", "", "", "", f"{error['kind']}: {words}", where)), document
    for run in document["runs"]:
        yield _of_run(run, check, where), run
    for finding in memory_findings(document):
        at = f"{finding.get('file') or ''}"
        told = base.relative(at) or at
        line = f"{told}:{finding['line']}" if finding.get("line") else told
        seen = (check, finding["kind"], finding.get("tensor") or "", "", "", finding["sentence"], line)
        yield Row(MISMATCH, float("inf"), seen), finding


def _of_run(run: Document, check: str, where: str) -> Row:
    failed = run_error(run)
    seen = [entry for entry in run.get("intermediates", ()) if entry["heads"]]
    ratios = {entry["name"]: times(entry["max_budget_ratio"]) for entry in seen}
    worst = max(ratios, key=lambda name: ratios[name], default=None)
    what = f"{failed[0]}: {failed[1]}" if failed else str(run.get("skipped") or "")
    if run.get("first_mismatch"):
        what = first_line(run["first_mismatch"])
    broken = [invariant["name"] for invariant in identities(run).values() if not invariant["holds"]]
    what = "; ".join(filter(None, (what, f"broken: {', '.join(broken)}" if broken else "")))
    told = f"{ratio(ratios[worst])}x in {worst}" if worst else ""
    own, inherited = (", ".join(blamed(run, status)) for status in (MISMATCH, INHERITED))
    wrong = run["verdict"] in (MISMATCH, *FAILED)
    cells = (check, run["layout"], own, inherited, told, what, where if wrong else "")
    return Row(run["verdict"], ratios[worst] if worst else 0.0, cells)


def _row(row: Row) -> str:
    verdict = row.verdict if row.verdict in ("match", SKIPPED) else f"**{row.verdict}**"
    return f"| {verdict} | {' | '.join(_plain(cell) for cell in row.cells)} |\n"


def _plain(text: str) -> str:
    """Text in which Markdown and HTML find nothing of theirs, in one line."""
    escaped = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", visible(text))
    return escaped.replace("\n", "<br>")
