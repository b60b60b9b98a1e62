"""What can be checked here: every built-in target, with what it takes and exposes, read from its file unimported."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from ..inputs.options import OPTIONS
from ..model.assignment import OUTPUTS
from ..render.text import CAUTION
from ..targets.builtin import BUILTINS, Builtin
from ..targets.find import canonical_name, family_of

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
    options = {_OPTION_OF.get(name, name) for name in takes if name is not None}
    return ListedTarget(
        name=builtin.name,
        summary=builtin.summary,
        family=family_of(takes),
        is_backward="do" in takes,
        takes=tuple(option.name for option in OPTIONS if option.name in options),
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
            return node.lineno, [parameter.arg for parameter in (*node.args.args, *node.args.kwonlyargs)]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == name:
            function, lacking, *_ = node.value.args
            line, parameters = _signature(statements, ast.unparse(function))
            return line, [parameter for parameter in parameters if parameter not in ast.literal_eval(lacking)]
    raise LookupError(name)


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
    return {"schema": SCHEMA, "targets": [asdict(entry) | {"missing": entry.missing or None} for entry in entries]}


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
    first, *rest = textwrap.wrap(entry.summary, max(width, 40) - len(name))
    yield name + Text(first)
    yield from (Text(" " * len(name) + line) for line in rest)
    if entry.missing:
        yield from _folded("not here", entry.missing, width, CAUTION)
    kind = "backward" if entry.is_backward else "forward through autograd"
    yield from _folded("family", f"{entry.family}, a {kind}", width)
    yield from _folded("takes", " ".join("--" + name.replace("_", "-") for name in entry.takes), width)
    if entry.outputs:
        yield from _folded("writes", f"{' '.join(entry.outputs)}, into tensors that it is given", width)
    yield from _folded("exposes", " ".join(entry.exposes), width)
    file = Path(entry.file).relative_to(Path(__file__).parents[2])  # beginning at the package's folder, as imports do
    yield from _folded("file", f"{file}:{entry.line}", width)


def _folded(label: str, words: str, width: int, style: str = "", indent: int = _INDENT) -> Iterator[Text]:
    lines = textwrap.wrap(words, max(width, 40) - indent - 2, break_on_hyphens=False, break_long_words=False)
    for at, line in enumerate(lines):
        yield Text.assemble("  ", (f"{'' if at else label:<{indent}}", "dim"), (line, style))
