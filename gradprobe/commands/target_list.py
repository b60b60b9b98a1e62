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
from ..render.rows import lines_of
from ..targets.builtin import BUILTINS
from ..targets.definitions import inventory
from ..targets.find import FoundFunction, Target, find_target, missing, target_of


@dataclass(frozen=True)
class ListedTarget:
    """One function, or a built-in. Where it is refused, nothing is known of it but its name and line."""

    name: str
    """The word that names it."""
    command: str = ""
    """What to type."""
    family: str = ""
    is_backward: bool = False
    takes: tuple[str, ...] = ()
    """The case options that it has parameters for; any takes those of sizes, values and layouts."""
    outputs: tuple[str, ...] = ()
    """The gradients that it is given to write."""
    file: str = ""
    line: int = 0
    refused: str = ""
    """Why it cannot be checked as it is, or here."""
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


def builtin_targets() -> TargetList:
    """All built-in targets, also those that cannot run here; the others are imported in this process."""
    from ..runtime.backend import prepare_backend

    prepare_backend("auto")  # which says whether Triton interprets, before a file imports it
    listed = []
    with contextlib.redirect_stdout(sys.stderr):
        for name, row in BUILTINS.items():
            about: dict[str, Any] = {"summary": row.summary, "exposes": row.exposes}
            try:
                listed.append(_listed(find_target(name), **about))
            except Failure as failure:
                why = missing(row) or str(failure)
                listed.append(ListedTarget(name, refused=why, **about))
    return TargetList("", tuple(listed))


def found_in(file: str) -> TargetList:
    """Every function of a file that a word can name, by its line; the file is imported in this process.

    Raises:
        UsageFailure: there is no such file.
        TargetFailure: it fails to import.
    """
    from ..runtime.backend import prepare_backend

    prepare_backend("auto")
    with contextlib.redirect_stdout(sys.stderr):
        return TargetList(file, tuple(map(_of_function, inventory(file))))


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
_OWN = {
    "FILE.py:FUNCTION": "of a file, as in gradprobe check my_kernel.py:backward",
    "MODULE:FUNCTION": "of a module that Python can import",
    "": "One that takes dO is a backward and returns a dict of intermediates; any other is a forward and returns O. "
    "gradprobe init writes a first one of each.",
}


def render_builtin(listed: TargetList, width: int) -> list[Text]:
    """One paragraph a target, then how one names one's own; folded to `width`."""
    lines = list[Text]()
    for entry in listed.targets:
        name = Text(f"{entry.name:<{_INDENT + 4}}", "dim" if entry.refused else "bold")
        first, *rest = lines_of(entry.summary, max(width, 40) - len(name))
        lines += [name + Text(first), *(Text(" " * len(name) + line) for line in rest)]
        lines += _facts(entry, width)
        lines += [*_folded("exposes", " ".join(entry.exposes), width), Text()]
    lines.append(Text("A function of your own", "bold"))
    for form, meaning in _OWN.items():
        lines += _folded(form, meaning, width, indent=18)
    return lines


def render_file(listed: TargetList, width: int) -> list[Text]:
    """What can be checked, with the words to type, and why the rest cannot."""
    can = [entry for entry in listed.targets if not entry.refused]
    count = plural(len(listed.targets), "function")
    lines = [Text(f"{listed.file}: {len(can)} of {count} can be checked", "bold")]
    for entry in listed.targets:
        lines += [
            Text(),
            *([] if entry.refused else [Text(entry.command)]),
            *_facts(entry, width),
        ]
    if not can:
        words = f"gradprobe init writes an adapter, to call what {listed.file} has"
        lines += [Text(), *map(Text, lines_of(words, max(width, 40)))]
    return lines


def _facts(entry: ListedTarget, width: int) -> Iterator[Text]:
    if entry.refused and entry.summary:
        yield from _folded("not here", entry.refused, width, CAUTION)
        return
    if entry.refused:
        words = f"line {entry.line}: it {entry.refused}"
        yield from _folded(entry.name.rpartition(":")[2], words, width)
        return
    kind = "backward" if entry.is_backward else "forward through autograd"
    place = f"{os.path.basename(entry.file)}:" if entry.summary else "in line "
    takes = " ".join(map(flag_of, entry.takes)) or "no option but sizes, values and layouts"
    yield from _folded("family", f"{entry.family}, a {kind}, {place}{entry.line}", width)
    yield from _folded("takes", takes, width)
    if entry.outputs:
        words = f"{' '.join(entry.outputs)}, into tensors that it is given"
        yield from _folded("writes", words, width)


def _folded(
    label: str, words: str, width: int, style: str = "", indent: int = _INDENT
) -> Iterator[Text]:
    indent = max(indent, len(label) + 2)
    for at, line in enumerate(lines_of(words, max(width, 40) - indent - 2)):
        yield Text.assemble("  ", (f"{'' if at else label:<{indent}}", "dim"), (line, style))
