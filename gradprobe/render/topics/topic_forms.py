"""Topics on a terminal, in SARIF, and as docs/explain.md: `python -m gradprobe.render.topics.topic_forms` makes it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from ..rows import lines_of
from .topic import BUDGET, FAULT, IDENTITY, RULE, Topic, topics

_HEADS = {
    FAULT: ("Faults", "as causes name them: `stride/do-head` is the fault `stride`"),
    RULE: ("Rules", "of reports for CI, and of `lint`; an id keeps its meaning for ever"),
    IDENTITY: ("Identities", "that judge without a reference"),
    BUDGET: ("Budgets", "and the arithmetic that they are derived from"),
}
_PARTS = (("", "what"), ("looks", "looks"), ("seen", "seen"), ("try", "help"))
_INDENT = 8
# Narrower, sentences are columns of words.
_LEAST = 40


def render_topics(topics: Sequence[Topic], width: int) -> list[Text]:
    """Each topic in full."""
    lines: list[Text] = []
    for topic in topics:
        lines += [*([Text()] if lines else []), *_whole(topic, max(width, _LEAST))]
    return lines


def _whole(topic: Topic, width: int) -> Iterator[Text]:
    yield Text.assemble((", ".join(topic.names), "bold"), (f"  {_kind(topic)}", "dim"))
    yield from (Text(line, "bold") for line in lines_of(topic.title, width))
    for label, name in _PARTS:
        words = getattr(topic, name)
        if words:
            yield Text()
            yield from _part(label, words.replace("`", ""), width)
        if name == "seen" and topic.link:
            yield Text(f"  {'':<{_INDENT}}{topic.link}")


def _kind(topic: Topic) -> str:
    return f"{topic.kind}, {topic.detail}" if topic.detail else topic.kind


def _part(label: str, words: str, width: int) -> Iterator[Text]:
    for number, line in enumerate(lines_of(words, width - 2 - _INDENT)):
        yield Text.assemble("  ", (f"{'' if number else label:<{_INDENT}}", "dim"), line)


def render_list(width: int) -> list[Text]:
    """A line for each topic."""
    lines: list[Text] = []
    for kind, (head, words) in _HEADS.items():
        lines += [
            *([Text()] if lines else []),
            Text.assemble((head, "bold"), (f"  {words.replace('`', '')}", "dim")),
        ]
        of_kind = [topic for topic in topics() if topic.kind == kind]
        longest = max(len(", ".join(topic.names)) for topic in of_kind)
        for topic in of_kind:
            title = textwrap.shorten(
                topic.title, max(width, _LEAST) - longest - 4, placeholder=" ..."
            )
            lines.append(
                Text.assemble("  ", f"{', '.join(topic.names):<{longest}}", "  ", (title, "dim"))
            )
    return lines


def in_markdown(topic: Topic) -> str:
    """A topic below its heading: what stands in SARIF's help, and on the page."""
    seen = f"{topic.seen} <{topic.link}>" if topic.seen else ""
    labelled = (("**Looks like:**", topic.looks), ("**Seen:**", seen), ("**Try:**", topic.help))
    return "\n\n".join([topic.what, *(f"{label} {words}" for label, words in labelled if words)])


_INTRODUCTION = """\
<!-- Written from gradprobe/render/topics/*.md by `python -m gradprobe.render.topics.topic_forms > docs/explain.md`. -->

# What the words mean

`gradprobe explain WORD` says the same on a terminal, of every fault, rule, identity and budget that a report names.
Without a word it lists them. What is linked is what others found in public kernels.
"""


def page() -> str:
    """docs/explain.md: all topics, each with a heading that a link can name (`#gp001`, `#stride`)."""
    parts = [_INTRODUCTION]
    for kind, (head, words) in _HEADS.items():
        parts.append(f"## {head}\n\n{head}, {words}.\n")
        for topic in (topic for topic in topics() if topic.kind == kind):
            others = "".join(f", `{name}`" for name in topic.names[1:])
            detail = f" ({topic.detail})" if topic.detail else ""
            parts.append(
                f"### {topic.name}\n\n**{topic.title}**{others}{detail}\n\n{in_markdown(topic)}\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
