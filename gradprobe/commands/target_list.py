"""What can be checked: every built-in target, and every function of a user's file."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from ..inputs.options import OPTIONS, command_line
from ..model.case import flag_of
from ..model.failures import Failure, UsageFailure
from ..model.intermediates import GRADIENT_OF, TABLE
from ..model.number import plural
from ..render.notation import CAUTION
from ..render.rows import lines_of
from ..targets.builtin import BUILTINS
from ..targets.definitions import inventory
from ..targets.find import FoundFunction, Target, find_target, target_of
from ..targets.naming import EITHER, WORLD, canonical_name

# What a parameter lets be asked for under another name. A target is given dropout's mask, and draws none itself.
_OPTION_OF = {"cu_seqlens_q": "cu_seqlens", "keep": "dropout", "dropout": None}


@dataclass(frozen=True)
class ListedTarget:
    """One function, or a built-in. Where it is refused, nothing is known of it but its name and line."""

    name: str
    """The word that names it."""
    command: str = ""
    """What to type, with the options that it cannot do without."""
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
    is_other: bool = False
    """Whether that is because it takes no q, k and v at all."""
    summary: str = ""
    """Of a built-in what it is."""
    exposes: tuple[str, ...] = ()
    """Of a built-in, where the case has them: dBias exists under --bias."""

    @property
    def function(self) -> str:
        return self.name.rpartition(":")[2]


@dataclass(frozen=True)
class TargetList:
    """All that stands in a file, or is built in."""

    file: str
    """"" of what is built in."""
    targets: tuple[ListedTarget, ...]
    kernels: tuple[str, ...] = ()
    """The Triton kernels of a file and what they call, which functions launch."""

    def as_json(self) -> dict[str, Any]:
        """The document gradprobe.targets/1."""
        return {"schema": "gradprobe.targets/1", **asdict(self)}


def builtin_targets() -> TargetList:
    """All built-in targets, also those that cannot run here; the others are imported in this process."""
    from ..runtime.backend import prepare_backend

    prepare_backend("auto")  # which says whether Triton interprets, before a file imports it
    listed = []
    with contextlib.redirect_stdout(sys.stderr):
        for name, row in BUILTINS.items():
            told: dict[str, Any] = {"summary": row.summary, "exposes": row.exposes}
            try:
                listed.append(_listed(find_target(name), told))
            except Failure as failure:
                why = row.missing() or str(failure)
                listed.append(ListedTarget(name, refused=why, **told))
    return TargetList("", tuple(listed))


def found_in(file: str) -> TargetList:
    """Every function of a file that a word can name, by its line; the file is imported in this process.

    Raises:
        UsageFailure: there is no such file.
        TargetFailure: it fails to import.
    """
    from ..runtime.backend import prepare_backend
    from ..source.triton_source import functions_of

    prepare_backend("auto")
    with contextlib.redirect_stdout(sys.stderr):
        found = inventory(file)
        kernels = functions_of(vars(found.module), str(found.module.__file__))
        targets = tuple(map(_of_function, found.functions))
        return TargetList(file, targets, tuple(kernel.name for kernel in kernels))


def _of_function(function: FoundFunction) -> ListedTarget:
    try:
        return _listed(target_of(function))
    except UsageFailure as failure:
        why = str(failure).removeprefix(f"target {function.word!r} ")
        known = set(map(canonical_name, inspect.signature(function.function).parameters))
        place, is_other = function.source, not {"q", "k", "v"} <= known
        return ListedTarget(
            function.word, file=place.file, line=place.line, refused=why, is_other=is_other
        )


def _listed(target: Target, told: Mapping[str, Any] = {}) -> ListedTarget:  # noqa: B006
    return ListedTarget(
        name=target.name,
        command=command_line("check", target.name, _needed(target)),
        family=target.family,
        is_backward=target.is_backward,
        takes=_taken(target.takes, target.family),
        outputs=target.outputs,
        file=target.source.file,
        line=target.source.line,
        **told,
    )


# Of a parameter without a default that no case has by itself: words with which a case has it.
_GIVEN: dict[str, Mapping[str, Any]] = {
    "bias": {"bias": True},
    "window": {"window": "16,0"},
    "softcap": {"softcap": 5.0},
    "seqlens": {"seqlens": "72,40"},
    "alibi": {"alibi": True},
    "mask": {"mask": "random"},
    "sinks": {"sinks": True},
    "keep": {"dropout": 0.3},
    "dropout": {"dropout": 0.3},
    **dict.fromkeys(("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"), {"cu_seqlens": "0,30,72"}),
    **dict.fromkeys(WORLD, {"ranks": 2}),
}
_GIVEN |= {row.name.lower(): _GIVEN[row.needs] for row in TABLE if row.needs in _GIVEN}
# What a lazy case has by itself.
_OF_LAZY = {"window", "tau", "bias", GRADIENT_OF["tau"].lower(), GRADIENT_OF["bias"].lower()}


def _needed(target: Target) -> dict[str, Any]:
    """The options without which a target cannot be called."""
    required = set(target.required) - (_OF_LAZY if target.family == "lazy" else set())
    if target.takes.get("bias") in EITHER and "bias" in required:
        required = {*required - {"bias"}, "mask"}
    words: dict[str, Any] = {}
    for name, given in _GIVEN.items():
        words |= given if name in required else {}
    return words


def _taken(takes: Iterable[str | None], family: str) -> tuple[str, ...]:
    """The case options that parameters of these canonical names stand for, as the command line orders them."""
    names = _OPTION_OF | ({"window": "bias_window"} if family == "lazy" else {})
    options = {names.get(name, name) for name in takes if name is not None}
    return tuple(option.name for option in OPTIONS if option.name in options)


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
        if entry.refused:
            lines += _folded("not here", entry.refused, width, CAUTION)
        else:
            lines += _facts(entry, width)
        lines += [*_folded("exposes", " ".join(entry.exposes), width), Text()]
    lines.append(Text("A function of your own", "bold"))
    for form, meaning in _OWN.items():
        lines += _folded(form, meaning, width, indent=18)
    return lines


def render_file(listed: TargetList, width: int) -> list[Text]:
    """What can be checked, with the words to type; then what cannot, and why."""
    can = [one for one in listed.targets if not one.refused]
    refused = [one for one in listed.targets if one.refused]
    count = plural(len(listed.targets), "function")
    lines = [Text(f"{listed.file}: {len(can)} of {count} can be checked", "bold")]
    for entry in can:
        lines += [Text(), Text(entry.command), *_facts(entry, width)]
    if refused:
        lines += [Text(), Text("Not as it stands", "bold")]
    for entry in refused:
        if not entry.is_other:
            why = f"line {entry.line}: it {entry.refused}"
            lines += _folded(entry.function, why, width)
    if others := [entry.function for entry in refused if entry.is_other]:
        lines += _folded("no q, k, v", ", ".join(others), width)
    if not can:
        lines += [Text(), *map(Text, lines_of(_way_out(listed), max(width, 40)))]
    return lines


def _way_out(listed: TargetList) -> str:
    if listed.kernels and not listed.targets:
        kernels = ", ".join(listed.kernels)
        launch = f"{listed.file} has kernels and nothing that launches them ({kernels})"
        return f"{launch}: name a function that does, of the file that imports it; gradprobe init writes one"
    return f"gradprobe init writes an adapter, to call what {listed.file} has"


def _facts(entry: ListedTarget, width: int) -> Iterator[Text]:
    kind = "backward" if entry.is_backward else "forward through autograd"
    place = f", in line {entry.line}"
    if entry.summary:
        place = f", {os.path.basename(entry.file)}:{entry.line}"
    takes = " ".join(map(flag_of, entry.takes))
    yield from _folded("family", f"{entry.family}, a {kind}{place}", width)
    yield from _folded("takes", takes or "no option but sizes, values and layouts", width)
    if entry.outputs:
        words = f"{' '.join(entry.outputs)}, into tensors that it is given"
        yield from _folded("writes", words, width)


def _folded(
    label: str, words: str, width: int, style: str = "", indent: int = _INDENT
) -> Iterator[Text]:
    indent = max(indent, len(label) + 2)
    for at, line in enumerate(lines_of(words, max(width, 40) - indent - 2)):
        yield Text.assemble("  ", (f"{'' if at else label:<{indent}}", "dim"), (line, style))
