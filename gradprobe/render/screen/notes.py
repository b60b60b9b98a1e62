"""What else a reader must know of a check: each kind of sentence in the order in which they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ...model.layout_run import Error
from ...model.memory_finding import Group, grouped
from ...model.number import listed, plural
from ...model.report import Report
from ..console import coarse_words, unused
from ..notation import identities
from ..source_places import base_of

FACTS = 3
"""Sentences about an error without a cause that are shown."""


def facts_of(report: Report) -> list[str]:
    """What is known of an error without a cause: what was seen inside says more than what the results are."""
    return [*(report.failing.inside if report.failing else ()), *report.known]


def findings(report: Report) -> list[str]:
    """The sentences, the most important first."""
    return list(dict.fromkeys(sentence for kind, _ in _IMPORTANCE for sentence in kind(report)))


def limits(report: Report) -> list[str]:
    """The sentences without which a match would say too much."""
    return [*_not_judged(report), *_readings(report)]


def unseen(report: Report) -> int:
    """How many notes are only counted: what is 0 by design, what is on the ReLU's kink, further facts."""
    facts = 0 if report.causes else max(0, len(facts_of(report)) - FACTS)
    return (
        sum(_is_quiet(note) for note in report.notes)
        + bool(report.measured and report.shown.undecided)
        + facts
    )


def all_notes(report: Report) -> Iterator[str]:
    """Every sentence, in full."""
    if report.is_right_when_contiguous:
        yield "right when contiguous and wrong otherwise: the arithmetic is right, an address (a stride) is not"
    yield from (group.sentence for group in _strays(report))
    yield from (report.failing or report.measured[0]).inside
    for kind in (_compile_errors, _shadows, _warned, _arithmetic, _asked_for, _identities):
        yield from kind(report)
    held = {key for run in report.measured for key in identities(run)}
    if held and not any(run.broken for run in report.measured):
        yield f"identities hold: {' '.join(sorted(held, key=lambda key: (key == 'repeat', len(key), key)))}"
    yield from report.notes
    yield from (f"the target warns: {words}" for words in report.target_warnings)
    if report.shown.undecided:
        count = plural(report.shown.undecided, "entry")
        yield f"{count} on the ReLU's kink, where rounding decides: either side is right"
    yield from report.hints


def _not_judged(report: Report) -> Iterator[str]:
    """Layouts without a result, those for the same reason together."""
    layouts: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        if run.told_error:
            words = run.error.words if isinstance(run.error, Error) else ""
            why = words or re.sub(r"^target '.*?' ", "", run.told_error[1])
            article = "a crash" if run.verdict == "crashed" else f"an {run.verdict}"
            layouts.setdefault((f"ended in {article}", why), []).append(run.layout)
        elif not run.is_judged and run.skipped:
            layouts.setdefault(("is refused", run.skipped), []).append(run.layout)
    for (how, why), those in layouts.items():
        verb = how if len(those) == 1 else how.replace("is ", "are ")
        yield f"{listed(those)} {verb}: {why}"


def _readings(report: Report) -> Iterator[str]:
    """In what other way its tensors were found to be meant."""
    yield from (note for note in report.notes if "of its results are right so" in note)


def _compile_errors(report: Report) -> Iterator[str]:
    for one in report.compile_errors:
        yield f"COMPILE ERROR  {one.sentence}"


def _strays(report: Report) -> list[Group]:
    """What kernels did to memory, the worst first, where no cause says it already."""
    found = ((run.layout, one) for run in report.runs if not run.told_error for one in run.memory)
    if not (strays := list(found)):
        return []
    causes = {cause.summary for cause in report.causes}
    return [group for group in grouped(strays) if group.sentence not in causes]


def _memory(report: Report) -> Iterator[str]:
    if groups := _strays(report):
        more = (
            f" ({plural(len(groups) - 1, 'finding')} more about memory)"
            if len(groups) > 1
            else ""
        )
        yield f"{in_short(groups[0].sentence)}{more}"


def in_short(sentence: str) -> str:
    """A sentence about memory without its layouts, its program and the text of its line."""
    return re.split(r" \(program |, line \d+: `|: `", re.sub(r"^in [^:]+: ", "", sentence))[0]


def _shadows(report: Report) -> Iterator[str]:
    for shadow in report.target.shadows:
        yield unused(base_of(report), shadow)


def _warned(report: Report) -> Iterator[str]:
    for warning in report.warnings:
        yield f"WARNING  {warning.words}"


def _arithmetic(report: Report) -> Iterator[str]:
    yield from report.coarser
    yield from coarse_words(report)


def _asked_for(report: Report) -> Iterator[str]:
    """What repeats showed, and what another target came to."""
    if any(run.repeats for run in report.measured):
        from ..repeat_sentences import repeat_sentences

        yield from repeat_sentences(report)
    if report.against is not None:
        from ..target_pair import beside

        yield from beside(report)


def _identities(report: Report) -> Iterator[str]:
    """Where elements are wrong a broken identity adds nothing."""
    broken = [] if report.failing else [one.name for run in report.measured for one in run.broken]
    yield from [f"identities broken: {'; '.join(dict.fromkeys(broken))}"] if broken else []


def target_warnings(report: Report) -> Iterator[str]:
    """How many there are: --details has their words."""
    if count := len(report.target_warnings):
        yield f"{plural(count, 'warning')} from the target: --details shows {'it' if count == 1 else 'them'}"


def _notes(report: Report) -> Iterator[str]:
    yield from sorted((note for note in report.notes if not _is_quiet(note)), key=_rank)


# Notes that change what a verdict is worth, by how they begin: what was not checked at all, what is judged in another
# way than was asked for, and what was stopped before its end.
_FIRST = ("not checked", "exported in another convention", "the target changes", "stopped")


def _rank(note: str) -> int:
    return next(
        (at for at, beginning in enumerate(_FIRST) if note.startswith(beginning)), len(_FIRST)
    )


def _is_quiet(note: str) -> bool:
    """Whether it says what is so in every right kernel."""
    return "0 by design" in note


_IMPORTANCE: Sequence[tuple[Callable[[Report], Iterator[str]], str]] = (
    (_not_judged, "the verdict does not hold where nothing was judged"),
    (_readings, "the verdict is about the target as it was read"),
    (_compile_errors, "what is right here does not run on any GPU"),
    (_memory, "no comparison of results shows it"),
    (_shadows, "all else may be about another file than the one that is meant"),
    (_warned, "the next case may be wrong"),
    (_arithmetic, "it says that no formula is wrong"),
    (_asked_for, "it was asked for"),
    (
        lambda report: iter(report.known if report.causes else ()),
        "the cause does not explain all",
    ),
    (_identities, "a sum is off though every element is within budget"),
    (_notes, "it says what the verdict is about"),
    (target_warnings, "no number is wrong for it"),
    (lambda report: iter(report.hints), "it says what to do next"),
)
"""Each kind of sentence, and why it stands where it does."""
