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
from ..targets.find import FoundFunction, family_of, target_of
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
    return tuple(_builtin_entry(builtin) for builtin in BUILTINS.values())


def _builtin_entry(builtin: Builtin) -> ListedTarget:
    module, _, name = builtin.spec.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    file = Path(spec.origin or "")
    line, parameters = _signature(ast.parse(file.read_text(encoding="utf-8")).body, name)
    takes = {canonical_name(parameter) for parameter in parameters}
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
            return node.lineno, [
                parameter.arg for parameter in (*node.args.args, *node.args.kwonlyargs)
            ]
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.targets[0]) == name
        ):
            function, lacking, *_ = node.value.args
            line, parameters = _signature(statements, ast.unparse(function))
            return line, [
                parameter
                for parameter in parameters
                if parameter not in ast.literal_eval(lacking)
            ]
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
    word = function.word
    try:
        target = target_of(function)
    except UsageFailure as failure:
        why = str(failure).removeprefix(f"target {word!r} ")
        known = set(map(canonical_name, inspect.signature(function.function).parameters))
        return TargetListing(
            word, "", "", False, (), (), function.source.line, why, not {"q", "k", "v"} <= known
        )
    of_lazy = {
        "window",
        *(name for input in ("tau", "bias") for name in (input, GRADIENT_OF[input].lower())),
    }
    lazy = of_lazy if target.family == "lazy" else set()
    masks = {"bias": "mask"} if target.takes.get("bias") in EITHER else {}
    required = {masks.get(name, name) for name in target.required - lazy}
    needed = [given for name, given in _GIVEN.items() if name in required]
    words = {name: value for given in needed for name, value in given.items()}
    return TargetListing(
        word,
        command_line("check", word, words),
        target.family,
        target.is_backward,
        _taken(target.takes, target.family),
        target.outputs,
        function.source.line,
    )


def _taken(takes: Iterable[str | None], family: str) -> tuple[str, ...]:
    """The case options that parameters of these canonical names stand for, as the command line orders them."""
    names = _OPTION_OF | ({"window": "bias_window"} if family == "lazy" else {})
    options = {names.get(name, name) for name in takes if name is not None}
    return tuple(option.name for option in OPTIONS if option.name in options)


def file_as_json(targets: FileTargets) -> dict[str, Any]:
    """The document gradprobe.targets.file/1."""
    return {"schema": "gradprobe.targets.file/1", **asdict(targets)}


def render_file(targets: FileTargets, width: int) -> list[Text]:
    """What can be checked, with the words to type; then what cannot, and why."""
    can = [one for one in targets.targets if not one.refused]
    lines = [
        Text(
            f"{targets.file}: {len(can)} of {plural(len(targets.targets), 'function')} can be checked",
            "bold",
        )
    ]
    for entry in can:
        lines += [Text(), *_of_file(entry, width)]
    if len(can) < len(targets.targets):
        lines += [Text(), *_refused([one for one in targets.targets if one.refused], width)]
    return (
        lines
        if can
        else [*lines, Text(), *map(Text, lines_of(_way_out(targets), max(width, 40)))]
    )


def _way_out(targets: FileTargets) -> str:
    if targets.kernels and not targets.targets:
        launch = f"{targets.file} has kernels and nothing that launches them ({', '.join(targets.kernels)})"
        return f"{launch}: name a function that does, of the file that imports it; gradprobe init writes one"
    return f"gradprobe init writes an adapter, to call what {targets.file} has"


def _refused(entries: Sequence[TargetListing], width: int) -> Iterator[Text]:
    """Why some cannot be checked; those that are no attention in one sentence."""
    yield Text("Not as it stands", "bold")
    for entry in (one for one in entries if not one.is_other):
        yield from _folded(_function(entry), f"line {entry.line}: it {entry.refused}", width)
    if others := [_function(entry) for entry in entries if entry.is_other]:
        yield from _folded("no q, k, v", ", ".join(others), width)


def _function(entry: TargetListing) -> str:
    return entry.name.rpartition(":")[2]


def _of_file(entry: TargetListing, width: int) -> Iterator[Text]:
    yield Text(entry.command)
    kind = "backward" if entry.is_backward else "forward through autograd"
    yield from _folded("family", f"{entry.family}, a {kind}, in line {entry.line}", width)
    yield from _folded(
        "takes",
        " ".join(map(flag_of, entry.takes)) or "no option but sizes, values and layouts",
        width,
    )
    if entry.outputs:
        yield from _folded(
            "writes", f"{' '.join(entry.outputs)}, into tensors that it is given", width
        )


SCHEMA = "gradprobe.targets.find/1"
_INDENT = 11
_OWN = {
    "FILE.py:FUNCTION": "of a file, as in gradprobe check my_kernel.py:backward",
    "MODULE:FUNCTION": "of a module that Python can import",
    "": "One that takes dO is a backward and returns a dict of intermediates; any other is a forward and returns O. "
    "gradprobe init writes a first one of each.",
}


def as_json(entries: Sequence[ListedTarget]) -> dict[str, Any]:
    """All that is known of each, ready for `json.dumps`."""
    return {
        "schema": SCHEMA,
        "targets": [asdict(entry) | {"missing": entry.missing or None} for entry in entries],
    }


def render(entries: Sequence[ListedTarget], width: int) -> list[Text]:
    """One paragraph a target, then how one names one's own; folded to `width`."""
    lines = []
    for entry in entries:
        lines += [*_entry(entry, width), Text()]
    lines.append(Text("A function of your own", "bold"))
    for form, meaning in _OWN.items():
        lines += _folded(form, meaning, width, indent=18)
    return lines


def _entry(entry: ListedTarget, width: int) -> Iterator[Text]:
    name = Text(f"{entry.name:<{_INDENT + 4}}", "dim" if entry.missing else "bold")
    first, *rest = lines_of(entry.summary, max(width, 40) - len(name))
    yield name + Text(first)
    yield from (Text(" " * len(name) + line) for line in rest)
    if entry.missing:
        yield from _folded("not here", entry.missing, width, CAUTION)
    kind = "backward" if entry.is_backward else "forward through autograd"
    yield from _folded("family", f"{entry.family}, a {kind}", width)
    yield from _folded("takes", " ".join(map(flag_of, entry.takes)), width)
    if entry.outputs:
        yield from _folded(
            "writes", f"{' '.join(entry.outputs)}, into tensors that it is given", width
        )
    yield from _folded("exposes", " ".join(entry.exposes), width)
    file = Path(entry.file).relative_to(
        Path(__file__).parents[2]
    )  # beginning at the package's folder, as imports do
    yield from _folded("file", f"{file}:{entry.line}", width)


def _folded(
    label: str, words: str, width: int, style: str = "", indent: int = _INDENT
) -> Iterator[Text]:
    indent = max(indent, len(label) + 2)
    lines = lines_of(words, max(width, 40) - indent - 2)
    for at, line in enumerate(lines):
        yield Text.assemble("  ", (f"{'' if at else label:<{indent}}", "dim"), (line, style))
