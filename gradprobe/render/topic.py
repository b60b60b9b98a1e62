"""Topic: a word that reports use, with what it means, how it looks, where it was seen, and what to try.

Each stands in a file of topics/; `python -m tests.docs.explain` makes docs/explain.md of them:

## NAME, OTHER NAME | of what kind | TITLE

What it is.

Looks: ...

Seen: ... <link>

Try: ...
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.failures import UsageFailure, did_you_mean

if TYPE_CHECKING:
    from rich.text import Text

FAULT, RULE, IDENTITY, BUDGET = "fault", "rule", "identity", "budget"
HEADS = {
    FAULT: ("Faults", "as causes name them: `stride/do-head` is the fault `stride`"),
    RULE: ("Rules", "of reports for CI, and of `lint`; an id keeps its meaning for ever"),
    IDENTITY: ("Identities", "that judge without a reference"),
    BUDGET: ("Budgets", "and the arithmetic that they are derived from"),
}


@dataclass(frozen=True)
class Topic:
    """One entry."""

    kind: str
    """FAULT, RULE, IDENTITY or BUDGET."""
    names: tuple[str, ...]
    """The words that mean it; of a fault what stands before the slash. The first heads it in docs/explain.md."""
    detail: str
    """Of a fault its classes; of a rule its name, level, rank and kinds; else for what it holds."""
    title: str
    what: str
    looks: str
    seen: str
    """A real one, and where it is told; "" of what is gradprobe's own."""
    help: str
    """What to try."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def classes(self) -> list[str]:
        """Of a fault the classes that diagnoses have."""
        return self.detail.split(", ") if self.kind == FAULT else []

    @property
    def spellings(self) -> list[str]:
        """In small letters; of a rule of reports its name in lists of rules, too."""
        rule = self.detail.split(",")[:1] if self.name.startswith("GP") else []
        return list(map(str.lower, (*self.names, *rule)))


@cache
def topics() -> Sequence[Topic]:
    """All of them, kind by kind."""
    found, folder = list[Topic](), Path(__file__).with_name("topics")
    for kind, (head, _) in HEADS.items():
        text = (folder / f"{head.lower()}.md").read_text(encoding="utf-8")
        for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            found.append(_topic(kind, part))
    return found


def _topic(kind: str, text: str) -> Topic:
    heading, what, *others = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    names, detail, title = map(str.strip, heading.split("|"))
    parts = dict(other.split(": ", 1) for other in others)
    looks, seen, help = (parts.pop(name, "") for name in ("Looks", "Seen", "Try"))
    assert not parts, f"{heading}: {parts}"
    return Topic(kind, tuple(names.split(", ")), detail, title, what, looks, seen, help)


def topics_of(word: str) -> list[Topic]:
    """What a word of a report means: one topic, or every fault of a class.

    Args:
        word: "stride/do-head", "stride", "S1", "GP010", "AccessOutsideTensor", "I3", "tf32", in any case.

    Raises:
        UsageFailure: it is none, with the one that may be meant.
    """
    before, slash, _ = word.strip().lower().partition("/")
    # What a fault says behind its slash is what it is about: one text for all of them.
    known = [topic for topic in topics() if not slash or topic.kind == FAULT]
    found = [topic for topic in known if before in topic.spellings]
    # A class that is called as a fault is that fault.
    found = found or [topic for topic in known if before in map(str.lower, topic.classes)]
    if not found:
        spelled = list[str]()
        for topic in topics():
            spelled += (*topic.names, *topic.classes)
        lists = "gradprobe explain lists all; docs/table.md reads intermediates and layouts"
        words = f"explain: {word!r} is no fault, rule, identity or budget"
        raise UsageFailure(words, did_you_mean(before, spelled, "") or lists)
    return found


def render_topics(topics: Sequence[Topic], width: int) -> list[Text]:
    from rich.markdown import Markdown

    from .rows import lines_from

    lines: list[Text] = []
    for topic in topics:
        kind = f"{topic.kind}, {topic.detail}" if topic.detail else topic.kind
        heading = f"**{', '.join(topic.names)}** ({kind})\n\n**{topic.title}**"
        lines += lines_from(Markdown(f"{heading}\n\n{in_markdown(topic)}"), width)
    return lines


def render_list(width: int) -> list[Text]:
    from rich.text import Text

    lines: list[Text] = []
    for kind, (head, words) in HEADS.items():
        lines.append(Text.assemble((head, "bold"), (f"  {words.replace('`', '')}", "dim")))
        names = {", ".join(topic.names): topic.title for topic in topics() if topic.kind == kind}
        longest = max(map(len, names))
        for name, title in names.items():
            short = textwrap.shorten(title, max(width, 40) - longest - 4, placeholder=" ...")
            lines.append(Text.assemble(f"  {name:<{longest}}  ", (short, "dim")))
    return lines


def in_markdown(topic: Topic) -> str:
    """A topic below its heading: what stands in SARIF's help, and on the page."""
    text = topic.what
    for label, words in (("Looks like", topic.looks), ("Seen", topic.seen), ("Try", topic.help)):
        text += f"\n\n**{label}:** {words}" if words else ""
    return text
