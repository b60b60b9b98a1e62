"""Explain: what a word of a report means, as docs/explain.md says it, which a package holds too."""

import re
from pathlib import Path

from ..model.failures import UsageFailure, did_you_mean

_PAGE = Path(__file__).with_name("explain.md")
# A heading, a title, and what else may be said for it: a class, a rule's name, other words.
_ENTRY = re.compile(r"^### (.+)\n\n\*\*(.+?)\*\*(.*)\n(?:(?!##).*\n)*", re.MULTILINE)


def explained(word: str | None) -> str:
    """What a word means, in Markdown; of "stride/do-head" what "stride" does, and of None every word with its title.

    Raises:
        UsageFailure: no report uses such a word.
    """
    entries = list(_ENTRY.finditer(_PAGE.read_text(encoding="utf-8")))
    if word is None:
        return "".join(f"- `{entry[1]}`: {entry[2]}\n" for entry in entries)
    meant, found = word.partition("/")[0].lower(), list[str]()
    for entry in entries:
        if meant in re.findall(r"\w+", f"{entry[1]} {entry[3]}".lower()):
            found.append(entry[0].rstrip() + "\n")
    if not found:
        close = did_you_mean(word, [entry[1] for entry in entries], "")
        raise UsageFailure(
            f"no report says {word!r}", close or "gradprobe explain lists all words"
        )
    return "\n".join(found)
