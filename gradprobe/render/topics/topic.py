"""Topic: a word that reports use, with what it means, how it looks, where it was seen, and what to try.

## NAME, OTHER NAME | of what kind | TITLE

What it is.

Looks: ...

Seen: ... <link>

Try: ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...model.assignment import KNOWN
from ...model.failures import UsageFailure, did_you_mean
from ...model.intermediates import lookup

FAULT, RULE, IDENTITY, BUDGET = "fault", "rule", "identity", "budget"
_FILES = {FAULT: "faults.md", RULE: "rules.md", IDENTITY: "identities.md", BUDGET: "budgets.md"}
_PARTS = ("Looks", "Seen", "Try")


@dataclass(frozen=True)
class Topic:
    """One entry."""

    kind: str
    """FAULT, RULE, IDENTITY or BUDGET."""
    names: tuple[str, ...]
    """The words that mean it; of a fault what stands before the slash."""
    detail: str
    """Of a fault its classes; of a rule its name, level and rank; else for what it holds."""
    title: str
    what: str
    looks: str
    seen: str
    """A real one; "" of what is gradprobe's own."""
    link: str
    """Where that one is told."""
    help: str
    """What to try."""

    @property
    def name(self) -> str:
        """The first of its names, which is its heading in docs/explain.md."""
        return self.names[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """Of a fault the classes that diagnoses have."""
        return tuple(self.detail.split(", ")) if self.kind == FAULT else ()


@cache
def topics() -> tuple[Topic, ...]:
    """All of them, kind by kind."""
    return tuple(topic for kind in _FILES for topic in _read(kind))


def _read(kind: str) -> list[Topic]:
    text = (Path(__file__).parent / _FILES[kind]).read_text(encoding="utf-8")
    return [_topic(kind, part) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]


def _topic(kind: str, text: str) -> Topic:
    heading, what, *others = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    names, detail, title = (part.strip() for part in heading.split("|"))
    parts = {name: words for name, _, words in (other.partition(": ") for other in others)}
    unknown = parts.keys() - set(_PARTS)
    assert not unknown, f"{heading}: {unknown}"
    seen, _, link = parts.get("Seen", "").removesuffix(">").partition(" <")
    return Topic(
        kind,
        tuple(names.split(", ")),
        detail,
        title,
        what,
        parts["Looks"],
        seen,
        link,
        parts["Try"],
    )


def topics_of(word: str) -> tuple[Topic, ...]:
    """What a word of a report means: one topic, or every fault of a class.

    Args:
        word: "stride/do-head", "stride", "S1", "GP010", "AccessOutsideTensor", "I3", "tf32", in any case.

    Raises:
        UsageFailure: it is none, with the one that may be meant.
    """
    known, meant = _by_word(), word.strip().lower()
    before, slash, _ = meant.partition("/")
    # What a fault says behind its slash is what it is about: one text for all of them.
    found = tuple(topic for topic in known.get(before, ()) if not slash or topic.kind == FAULT)
    if not found:
        spelled = (name for topic in topics() for name in (*topic.names, *topic.classes))
        way_out = (
            _other_word(meant)
            or did_you_mean(before, spelled, "")
            or "gradprobe explain lists all"
        )
        raise UsageFailure(f"explain: {word!r} is no fault, rule, identity or budget", way_out)
    return found


def _other_word(word: str) -> str:
    """What a word is that stands in reports and has no text of its own; "" of none that is known."""
    if (row := lookup(word)) is not None and (step := row.softmax or row.lazy) is not None:
        return f"{row.name} is an intermediate, {step.formula}: docs/table.md reads the table of a report"
    if word.rpartition("=")[2] in KNOWN:
        return f"{word} is a layout: docs/table.md says what lies how"
    return ""


@cache
def _by_word() -> dict[str, tuple[Topic, ...]]:
    """By each word in small letters; a class that is called as a fault is that fault."""
    named, of_class = dict[str, tuple[Topic, ...]](), dict[str, tuple[Topic, ...]]()
    for topic in topics():
        rule = (topic.detail.partition(",")[0],) if topic.name.startswith("GP") else ()
        named |= {name.lower(): (topic,) for name in (*topic.names, *rule)}
        of_class |= {
            name.lower(): (*of_class.get(name.lower(), ()), topic) for name in topic.classes
        }
    return of_class | named
