"""What can be checked: every built-in target, and every function of a user's file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from ..inputs.options import OPTIONS, command_line
from ..model.case import flag_of
from ..model.failures import Failure, UsageFailure
from ..model.number import plural
from ..render.notation import CAUTION
from ..render.rows import folded, lines_of
from ..targets.builtin import BUILTINS
from ..targets.definitions import inventory
from ..targets.find import FoundFunction, Target, find_target, missing, target_of


@dataclass(frozen=True)
class ListedTarget:
    """One function, or a built-in. Where it is refused, nothing is known of it but its name and line."""

    name: str
    command: str = ""
    family: str = ""
    is_backward: bool = False
    takes: tuple[str, ...] = ()
    """The case options that it has parameters for; any takes those of sizes, values and layouts."""
    outputs: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    refused: str = ""
    summary: str = ""
    """Of a built-in what it is."""
    exposes: tuple[str, ...] = ()
    """Of a built-in, where the case has them: dBias exists under --bias."""


@dataclass(frozen=True)
class TargetList:
    """All that stands in a file, or is built in."""

    file: str
    """"" of what is built in."""
    targets: tuple[ListedTarget, ...]

    def as_json(self) -> dict[str, Any]:
        return {"schema": "gradprobe.targets/1", **asdict(self)}


def listed_targets(file: str) -> TargetList:
    """Every function of a file that a word can name, or every built-in target; files are imported in this process.

    Raises:
        UsageFailure: there is no such file.
        TargetFailure: it fails to import.
    """
    from ..runtime.backend import prepare_backend

    prepare_backend("auto")  # which says whether Triton interprets, before a file imports it
    with contextlib.redirect_stdout(sys.stderr):
        if file:
            return TargetList(file, tuple(map(_of_function, inventory(file))))
        return TargetList("", tuple(map(_of_builtin, BUILTINS)))


def _of_builtin(name: str) -> ListedTarget:
    row = BUILTINS[name]
    about: dict[str, Any] = {"summary": row.summary, "exposes": row.exposes}
    try:
        return _listed(find_target(name), **about)
    except Failure as failure:
        return ListedTarget(name, refused=missing(row) or str(failure), **about)


def _of_function(function: FoundFunction) -> ListedTarget:
    try:
        return _listed(target_of(function))
    except UsageFailure as failure:
        why = str(failure).removeprefix(f"target {function.word!r} ")
        place = function.source
        return ListedTarget(function.word, file=place.file, line=place.line, refused=why)


# What a parameter lets be asked for under another name. A target is given dropout's mask, and draws none itself.
_OPTION_OF = {"cu_seqlens_q": "cu_seqlens", "keep": "dropout", "dropout": None}


def _listed(target: Target, **about: Any) -> ListedTarget:
    names = _OPTION_OF | ({"window": "bias_window"} if target.family == "lazy" else {})
    taken = {names.get(name, name) for name in target.takes}
    return ListedTarget(
        name=target.name,
        command=command_line("check", target.name, {}),
        family=target.family,
        is_backward=target.is_backward,
        takes=tuple(option.name for option in OPTIONS if option.name in taken),
        outputs=target.outputs,
        file=target.source.file,
        line=target.source.line,
        **about,
    )


_INDENT = 11
_OWN = (
    "A function of your own is FILE.py:FUNCTION or MODULE:FUNCTION. One that takes dO is a backward and returns a dict "
    "of intermediates; any other is a forward and returns O. gradprobe init writes a first one of each."
)


def render_targets(listed: TargetList, width: int) -> list[Text]:
    """What can be checked, with the words to type, and why the rest cannot; folded to `width`."""
    can, paragraphs = (
        [entry for entry in listed.targets if not entry.refused],
        list[list[Text]](),
    )
    if listed.file:
        count = plural(len(listed.targets), "function")
        head = f"{listed.file}: {len(can)} of {count} can be checked"
        paragraphs.append([Text(head, "bold")])
    for entry in listed.targets:
        title = [Text(entry.command, "bold")] if entry.command else []
        title = [Text(entry.name, "dim")] if entry.refused and not listed.file else title
        paragraphs.append([*title, *_facts(entry, width)])
    if not listed.file:
        paragraphs.append(folded(_OWN, width))
    elif not can:
        words = f"gradprobe init writes an adapter, to call what {listed.file} has"
        paragraphs.append(folded(words, width))
    first, *rest = paragraphs
    return [*first, *(line for paragraph in rest for line in (Text(), *paragraph))]


def _facts(entry: ListedTarget, width: int) -> Iterator[Text]:
    kind = "backward" if entry.is_backward else "forward through autograd"
    place = f"{os.path.basename(entry.file)}:{entry.line}"
    takes = " ".join(map(flag_of, entry.takes)) or "no option but sizes, values and layouts"
    facts = {"": entry.summary}
    if entry.refused and entry.summary:
        facts["not here"] = entry.refused
    elif entry.refused:
        facts[entry.name.rpartition(":")[2]] = f"line {entry.line}: it {entry.refused}"
    else:
        facts |= {"family": f"{entry.family}, a {kind}, {place}", "takes": takes}
    if entry.outputs:
        facts["writes"] = f"{' '.join(entry.outputs)}, into tensors that it is given"
    facts["exposes"] = " ".join(entry.exposes)
    for label, words in facts.items():
        indent, style = max(_INDENT, len(label) + 2), CAUTION if label == "not here" else ""
        for at, line in enumerate(lines_of(words, max(width, 40) - indent - 2) if words else ()):
            start = f"{'' if at else label:<{indent}}"
            yield Text.assemble("  ", (start, "dim"), (line, style))
