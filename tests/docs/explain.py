"""docs/explain.md, of the topics that `gradprobe explain` shows: `python -m tests.docs.explain > docs/explain.md`."""

from gradprobe.render.topic import HEADS, in_markdown, topics

INTRODUCTION = """\
<!-- Written from gradprobe/render/topics/*.md by `python -m tests.docs.explain > docs/explain.md`. -->

# What the words mean

`gradprobe explain WORD` says the same on a terminal, of every fault, rule, identity and budget that a report names.
Without a word it lists them. What is linked is what others found in public kernels.
"""


def page() -> str:
    """All topics, each with a heading that a link can name (`#gp001`, `#stride`)."""
    parts = [INTRODUCTION]
    for kind, (head, words) in HEADS.items():
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
