"""Topic: a word that reports use, with what it means, how it looks, where it was seen, and what to try.

Each stands in a file of topics/; `python -m gradprobe.render.topic` makes docs/explain.md of them:

## NAME, OTHER NAME | of what kind | TITLE

What it is.

Looks: ...

Seen: ... <link>

Try: ...
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.failures import UsageFailure, did_you_mean

if TYPE_CHECKING:
    from rich.text import Text

FAULT, RULE, IDENTITY, BUDGET = "fault", "rule", "identity", "budget"
_HEADS = {
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
    """The words that mean it; of a fault what stands before the slash."""
    detail: str
    """Of a fault its classes; of a rule its name, level and rank; else for what it holds."""
    title: str
    what: str
    looks: str
    seen: str
    """A real one, and where it is told; "" of what is gradprobe's own."""
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
    return tuple(topic for kind in _HEADS for topic in _read(kind))


def _read(kind: str) -> Iterator[Topic]:
    file = Path(__file__).parent / "topics" / f"{_HEADS[kind][0].lower()}.md"
    text = file.read_text(encoding="utf-8")
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, what, *others = (" ".join(each.split()) for each in part.strip().split("\n\n"))
        names, detail, title = (word.strip() for word in heading.split("|"))
        parts = dict(other.split(": ", 1) for other in others)
        looks, seen, help = (parts.pop(name, "") for name in ("Looks", "Seen", "Try"))
        assert not parts, f"{heading}: {parts}"
        yield Topic(kind, tuple(names.split(", ")), detail, title, what, looks, seen, help)


def topics_of(word: str) -> tuple[Topic, ...]:
    """What a word of a report means: one topic, or every fault of a class.

    Args:
        word: "stride/do-head", "stride", "S1", "GP010", "AccessOutsideTensor", "I3", "tf32", in any case.

    Raises:
        UsageFailure: it is none, with the one that may be meant.
    """
    before, slash, _ = word.strip().lower().partition("/")
    # What a fault says behind its slash is what it is about: one text for all of them.
    known = [topic for topic in topics() if not slash or topic.kind == FAULT]
    # A class that is called as a fault is that fault.
    found = [topic for topic in known if before in _names_of(topic)]
    found = found or [topic for topic in known if before in map(str.lower, topic.classes)]
    if not found:
        spelled = (name for topic in topics() for name in (*topic.names, *topic.classes))
        way_out = (
            did_you_mean(before, spelled, "")
            or "gradprobe explain lists all; docs/table.md reads intermediates and layouts"
        )
        raise UsageFailure(f"explain: {word!r} is no fault, rule, identity or budget", way_out)
    return tuple(found)


def _names_of(topic: Topic) -> list[str]:
    """In small letters; of a rule of reports its name in lists of rules, too."""
    rule = topic.detail.split(",")[:1] if topic.name.startswith("GP") else []
    return [name.lower() for name in (*topic.names, *rule)]


def render_topics(topics: Sequence[Topic], width: int) -> list[Text]:
    """Each topic in full."""
    from rich.markdown import Markdown

    from .rows import lines_from

    lines: list[Text] = []
    for topic in topics:
        kind = f"{topic.kind}, {topic.detail}" if topic.detail else topic.kind
        heading = f"**{', '.join(topic.names)}** ({kind})\n\n**{topic.title}**"
        lines += lines_from(Markdown(f"{heading}\n\n{in_markdown(topic)}"), width)
    return lines


def render_list(width: int) -> list[Text]:
    """A line for each topic."""
    from rich.text import Text

    lines: list[Text] = []
    for kind, (head, words) in _HEADS.items():
        lines.append(Text.assemble((head, "bold"), (f"  {words.replace('`', '')}", "dim")))
        names = {", ".join(topic.names): topic.title for topic in topics() if topic.kind == kind}
        longest = max(map(len, names))
        for name, title in names.items():
            short = textwrap.shorten(title, max(width, 40) - longest - 4, placeholder=" ...")
            lines.append(Text.assemble(f"  {name:<{longest}}  ", (short, "dim")))
    return lines


def in_markdown(topic: Topic) -> str:
    """A topic below its heading: what stands in SARIF's help, and on the page."""
    labelled = {"Looks like": topic.looks, "Seen": topic.seen, "Try": topic.help}
    parts = [f"**{label}:** {words}" for label, words in labelled.items() if words]
    return "\n\n".join([topic.what, *parts])


_INTRODUCTION = """\
<!-- Written from gradprobe/render/topics/*.md by `python -m gradprobe.render.topic > docs/explain.md`. -->

# What the words mean

`gradprobe explain WORD` says the same on a terminal, of every fault, rule, identity and budget that a report names.
Without a word it lists them. What is linked is what others found in public kernels.
"""


def page() -> str:
    """docs/explain.md: all topics, each with a heading that a link can name (`#gp001`, `#stride`)."""
    parts = [_INTRODUCTION]
    for kind, (head, words) in _HEADS.items():
        parts.append(f"## {head}\n\n{head}, {words}.\n")
        for topic in topics():
            if topic.kind == kind:
                others = "".join(f", `{name}`" for name in topic.names[1:])
                detail = f" ({topic.detail})" if topic.detail else ""
                heading = f"### {topic.name}\n\n**{topic.title}**{others}{detail}"
                parts.append(f"{heading}\n\n{in_markdown(topic)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
