"""A check beside another one: which of the two targets is right, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.case import Case, unlike
from ..model.documents import Reports
from ..model.layout_run import FAILED, MATCH, Difference
from ..model.number import in_words, plural, ratio, spans
from ..model.report import Report, SecondCheck
from .comparison import changes_of, sentences_of
from .notation import blame, place_in_words, value
from .rows import headed

_STYLES = {MATCH: "bold green", FAILED: "bold red"}


def render_against(report: Report, width: int) -> Iterator[Text]:
    """What the other target came to, and the first place where both differ; nothing where there is no other."""
    if (other := report.against) is not None:
        words = f"{_who(other)} {_verdict(other.report)}; {_first(other, report)}"
        yield from headed("AGAINST", _STYLES.get(other.report.verdict, "bold red"), words, width)


def beside(report: Report) -> Iterator[str]:
    """Of each intermediate how far both differ; of a saved report what changed since."""
    if (other := report.against) is None:
        return
    for words, layouts in _alike(other.differences).items():
        yield f"beside {other.name}, in {', '.join(layouts)}: {words}"
    if other.is_saved:
        changes = changes_of(Reports(reports=(other.report,)), Reports(reports=(report,)))
        yield from (f"beside {other.name}: {sentence}" for sentence in sentences_of(changes))


def _who(other: SecondCheck) -> str:
    """The word, and on what it ran where that tells two runs of one target apart."""
    where = [other.report.target.backend, other.report.environment.get("device", "")]
    return f"{other.name} ({' on '.join(filter(None, where))})" if any(where) else other.name


def _verdict(report: Report) -> str:
    if report.verdict == MATCH:
        return "is right"
    if report.verdict == FAILED or report.failing is None:
        return "could not be checked"
    cause = f", since {report.causes[0].summary}" if report.causes else ""
    return f"is wrong: {blame(report.failing)}{cause}" if report.failing.compares else "is wrong"


def _first(other: SecondCheck, report: Report) -> str:
    """Where both differ first."""
    if other.is_saved:
        return "only what both reports hold is compared"
    if not other.differences:
        return f"nothing of both can be compared{_otherwise(report.case, other.report.case)}"
    found = next((one for one in other.differences if one.beyond), None)
    if found is not None:
        return f"they differ first in {_element(found)}"
    if not any(one.differing for one in other.differences):
        return "they give the same bits"
    worst = max(other.differences, key=_ratio)
    most = f"{ratio(_ratio(worst))}x of that, in {worst.name}"
    return f"every difference is within what one of them may err; the largest is {most}"


def _otherwise(case: Case | None, other: Case | None) -> str:
    if case is None or other is None:
        return ""
    ran = [
        f"{name} {getattr(case, name)} and {getattr(other, name)}" for name in unlike(case, other)
    ]
    return f": they ran with {', '.join(ran)}" if ran else ""


def _ratio(difference: Difference) -> float:
    return difference.max_budget_ratio or 0.0


def _element(difference: Difference) -> str:
    first = difference.first
    assert first is not None
    axes = [
        f"{axis} {index}"
        for axis, index in (("row", first.row), ("col", first.col))
        if index is not None
    ]
    numbers = f"{value(first.actual)} here, {value(difference.other)} there, {value(first.expected)} by the reference"
    return f"{difference.name} ({difference.layout}), {', '.join([place_in_words(first), *axes])}: {numbers}"


def _alike(differences: Sequence[Difference]) -> dict[str, list[str]]:
    """Of each layout a sentence, with the layouts that share it."""
    by_layout: dict[str, list[Difference]] = {}
    for one in differences:
        by_layout.setdefault(one.layout, []).append(one)
    found: dict[str, list[str]] = {}
    for layout, those in by_layout.items():
        found.setdefault("; ".join(_sentences(those)), []).append(layout)
    return found


def _sentences(those: Sequence[Difference]) -> Iterator[str]:
    beyond = [_counts(one) for one in those if one.beyond]
    within = [
        f"{one.name} ({ratio(_ratio(one))}x)" for one in those if one.differing and not one.beyond
    ]
    same = [one.name for one in those if not one.differing]
    for words, found in (
        ("differ", beyond),
        ("differ within what one may err", within),
        ("the same bits", same),
    ):
        if found:
            yield f"{words}: {', '.join(found)}"


def _counts(difference: Difference) -> str:
    heads = f"head{'s' * (len(difference.heads) > 1)} {in_words(spans(difference.heads))}"
    count = f"{difference.beyond:,} of {plural(difference.total, 'element')}"
    return f"{difference.name} in {heads} ({count}, by up to {ratio(_ratio(difference))}x)"
