"""What can be checked here: every built-in target, with what it takes and exposes, read from its file unimported."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ..cases.case import OUTPUTS
from ..options import OPTIONS
from .builtin import BUILTINS, Builtin
from .find import canonical_name, family_of

# What a parameter lets be asked for under another name. A target is given dropout's mask, and draws none itself.
_OPTION_OF = {"cu_seqlens_q": "cu_seqlens", "keep": "dropout", "dropout": None}


@dataclass(frozen=True)
class Entry:
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


def catalogue() -> tuple[Entry, ...]:
    """All built-in targets, whether or not they can run here; none of them is imported."""
    return tuple(_entry(builtin) for builtin in BUILTINS.values())


def _entry(builtin: Builtin) -> Entry:
    module, _, name = builtin.spec.partition(":")
    file = _file_of(module)
    line, parameters = _signature(ast.parse(file.read_text(encoding="utf-8")).body, name)
    takes = {canonical_name(parameter) for parameter in parameters}
    return Entry(
        name=builtin.name,
        summary=builtin.summary,
        family=family_of(takes),
        is_backward="do" in takes,
        takes=_options(takes),
        outputs=tuple(name for name in OUTPUTS if "do" in takes and name in takes),
        exposes=builtin.exposes,
        file=str(file),
        line=line,
        missing=builtin.missing(),
    )


def _file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


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


def _options(takes: set[str | None]) -> tuple[str, ...]:
    allowed = {_OPTION_OF.get(name, name) for name in takes if name is not None}
    return tuple(option.name for option in OPTIONS if option.name in allowed)
