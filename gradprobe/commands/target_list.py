"""What can be checked: every built-in target, read from its file unimported; and every function of a user's file."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from ..inputs.options import OPTIONS, command_line
from ..model.assignment import OUTPUTS
from ..model.case import flag_of
from ..model.failures import UsageFailure
from ..model.intermediates import GRADIENT_OF, TABLE
from ..model.number import plural
from ..render.notation import CAUTION
from ..render.rows import lines_of
from ..targets.builtin import BUILTINS, Builtin
from ..targets.find import FoundFunction, Target, family_of, target_of
from ..targets.inventory import inventory
from ..targets.naming import EITHER, WORLD, canonical_name

# What a parameter lets be asked for under another name. A target is given dropout's mask, and draws none itself.
_OPTION_OF = {"cu_seqlens_q": "cu_seqlens", "keep": "dropout", "dropout": None}


@dataclass(frozen=True)
class ListedTarget:
    """One built-in target."""

    name: str
    summary: str
    family: str
    is_backward: bool
    takes: tuple[str, ...]
    """The case options that it has parameters for; any takes those of sizes, values and layouts."""
    outputs: tuple[str, ...]
    """The gradients that it writes where its caller says, by the names that --layout takes."""
    exposes: tuple[str, ...]
    """Where the case has them: dBias exists under --bias."""
    file: str
    line: int
    missing: str
    """Why it cannot run on this machine; "" where it can."""


def catalogue() -> tuple[ListedTarget, ...]:
    """All built-in targets, whether or not they can run here; none of them is imported."""
    return tuple(map(_builtin_entry, BUILTINS.values()))


def _builtin_entry(builtin: Builtin) -> ListedTarget:
    module, _, name = builtin.spec.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    file = Path(spec.origin or "")
    line, parameters = _signature(ast.parse(file.read_text(encoding="utf-8")).body, name)
    takes = set(map(canonical_name, parameters))
    return ListedTarget(
        name=builtin.name,
        summary=builtin.summary,
        family=family_of(takes),
        is_backward="do" in takes,
        takes=_taken(takes, family_of(takes)),
        outputs=tuple(name for name in OUTPUTS if "do" in takes and name in takes),
        exposes=builtin.exposes,
        file=str(file),
        line=line,
        missing=builtin.missing(),
    )


def _signature(statements: list[ast.stmt], name: str) -> tuple[int, list[str]]:
    """The line of a function's definition, and its parameters; also of `NAME = narrowed(FUNCTION, LACKING, ...)`."""
    for node in statements:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = (*node.args.args, *node.args.kwonlyargs)
            return node.lineno, [parameter.arg for parameter in arguments]
        if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != name:
            continue
        if isinstance(node.value, ast.Call):
            function, lacking, *_ = node.value.args
            line, parameters = _signature(statements, ast.unparse(function))
            left_out = ast.literal_eval(lacking)
            return line, [parameter for parameter in parameters if parameter not in left_out]
    raise LookupError(name)


@dataclass(frozen=True)
class TargetListing:
    """One function of a user's file."""

    name: str
    """FILE.py:FUNCTION."""
    command: str
    """What to type, with the options that it cannot do without."""
    family: str
    is_backward: bool
    takes: tuple[str, ...]
    """The case options that it has parameters for."""
    outputs: tuple[str, ...]
    """The gradients that it is given to write."""
    line: int
    refused: str = ""
    """Why it cannot be checked as it is; what is above, but for name and line, then says nothing."""
    is_other: bool = False
    """Whether that is because it takes no q, k and v at all."""

    @property
    def function(self) -> str:
        return self.name.rpartition(":")[2]


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


@dataclass(frozen=True)
class FileTargets:
    """What stands in a user's file."""

    file: str
    targets: tuple[TargetListing, ...]
    """Every function that a word can name, by its line."""
    kernels: tuple[str, ...]
    """Its Triton kernels and what they call, which functions launch."""


def found_in(file: str) -> FileTargets:
    """What stands in a file, which is imported in this process.

    Raises:
        UsageFailure: there is no such file.
        TargetFailure: it fails to import.
    """
    from ..runtime.backend import prepare_backend
    from ..source.triton_source import functions_of

    prepare_backend("auto")  # which says whether Triton interprets, before the file imports it
    with contextlib.redirect_stdout(sys.stderr):
        found = inventory(file)
        kernels = functions_of(vars(found.module), str(found.module.__file__))
        return FileTargets(
            file, tuple(map(_listed, found.functions)), tuple(one.name for one in kernels)
        )


def _listed(function: FoundFunction) -> TargetListing:
    word, line = function.word, function.source.line
    try:
        target = target_of(function)
    except UsageFailure as failure:
        why = str(failure).removeprefix(f"target {word!r} ")
        known = set(map(canonical_name, inspect.signature(function.function).parameters))
        is_other = not {"q", "k", "v"} <= known
        return TargetListing(word, "", "", False, (), (), line, why, is_other)
    taken = _taken(target.takes, target.family)
    return TargetListing(
        word,
        command_line("check", word, _needed(target)),
        target.family,
        target.is_backward,
        taken,
        target.outputs,
        line,
    )


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


def as_json(entries: Sequence[ListedTarget]) -> dict[str, Any]:
    """The document gradprobe.targets.find/1."""
    targets = [asdict(entry) | {"missing": entry.missing or None} for entry in entries]
    return {"schema": "gradprobe.targets.find/1", "targets": targets}


def file_as_json(targets: FileTargets) -> dict[str, Any]:
    """The document gradprobe.targets.file/1."""
    return {"schema": "gradprobe.targets.file/1", **asdict(targets)}


_INDENT = 11
_OWN = {
    "FILE.py:FUNCTION": "of a file, as in gradprobe check my_kernel.py:backward",
    "MODULE:FUNCTION": "of a module that Python can import",
    "": "One that takes dO is a backward and returns a dict of intermediates; any other is a forward and returns O. "
    "gradprobe init writes a first one of each.",
}


def render(entries: Sequence[ListedTarget], width: int) -> list[Text]:
    """One paragraph a target, then how one names one's own; folded to `width`."""
    lines = list[Text]()
    for entry in entries:
        name = Text(f"{entry.name:<{_INDENT + 4}}", "dim" if entry.missing else "bold")
        first, *rest = lines_of(entry.summary, max(width, 40) - len(name))
        lines += [name + Text(first), *(Text(" " * len(name) + line) for line in rest)]
        if entry.missing:
            lines += _folded("not here", entry.missing, width, CAUTION)
        lines += _facts(entry, width)
        lines += _folded("exposes", " ".join(entry.exposes), width)
        # From the package's folder on, as imports are written.
        file = Path(entry.file).relative_to(Path(__file__).parents[2])
        lines += [*_folded("file", f"{file}:{entry.line}", width), Text()]
    lines.append(Text("A function of your own", "bold"))
    for form, meaning in _OWN.items():
        lines += _folded(form, meaning, width, indent=18)
    return lines


def render_file(targets: FileTargets, width: int) -> list[Text]:
    """What can be checked, with the words to type; then what cannot, and why."""
    can = [one for one in targets.targets if not one.refused]
    refused = [one for one in targets.targets if one.refused]
    count = plural(len(targets.targets), "function")
    lines = [Text(f"{targets.file}: {len(can)} of {count} can be checked", "bold")]
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
        lines += [Text(), *map(Text, lines_of(_way_out(targets), max(width, 40)))]
    return lines


def _way_out(targets: FileTargets) -> str:
    if targets.kernels and not targets.targets:
        kernels = ", ".join(targets.kernels)
        launch = f"{targets.file} has kernels and nothing that launches them ({kernels})"
        return f"{launch}: name a function that does, of the file that imports it; gradprobe init writes one"
    return f"gradprobe init writes an adapter, to call what {targets.file} has"


def _facts(entry: ListedTarget | TargetListing, width: int) -> Iterator[Text]:
    kind = "backward" if entry.is_backward else "forward through autograd"
    place = f", in line {entry.line}" if isinstance(entry, TargetListing) else ""
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
