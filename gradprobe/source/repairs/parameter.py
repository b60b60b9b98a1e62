"""A stride that a kernel was never passed: a new parameter, and what the launch passes for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..kernel_file import KernelFile
from ..operators.addresses import parameters, stride_of
from ..text import Edit
from .spots import Spot, calls_of


def stride_passed(file: KernelFile, spot: Spot) -> Iterator[tuple[float, tuple[Edit, ...]]]:
    """`h * stride_doh` for `h * stride_qh` where nothing is called so yet: with the parameter, and do.stride(1)."""
    kernel = spot.function
    if kernel not in file.kernels:
        return
    known = parameters(kernel)
    owned = [(name, parts) for name in known if (parts := stride_of(name)) and parts[0]]
    here = {parts[0] for node in spot.names if (parts := stride_of(node.id))}
    for node in spot.names:
        parts = stride_of(node.id)
        for anchor, own in owned:
            if parts is None or own[0] == parts[0] or own[0] not in here:
                continue
            name = _renamed(anchor, own, parts[1])
            launched = None if name is None or name in known else _launches(file, kernel, anchor, node.id, name)
            if name is not None and launched:
                yield 1.3, (file.replaced(node, name), _declared(file, kernel, anchor, name), *launched)


def _renamed(anchor: str, own: tuple[str, str], axis: str) -> str | None:
    """The name of another axis of a stride's tensor, as the field writes it there: stride_dob -> stride_doh."""
    found = re.sub(f"{re.escape(own[1])}$", axis, anchor)
    return found if stride_of(found) == (own[0], axis) else None


def _declared(file: KernelFile, kernel: ast.FunctionDef, anchor: str, name: str) -> Edit:
    node = next(each for each in (*kernel.args.args, *kernel.args.kwonlyargs) if each.arg == anchor)
    end = file.span(node)[1]
    return Edit(end, end, f", {name}")


def _launches(file: KernelFile, kernel: ast.FunctionDef, anchor: str, foreign: str, name: str) -> list[Edit] | None:
    """What every launch passes besides; None where one of them does not tell."""
    names, edits = parameters(kernel), list[Edit]()
    for call in calls_of(file, kernel.name):
        given = {} if any(isinstance(each, ast.Starred) for each in call.args) else dict(zip(names, call.args))  # noqa: B905
        by_name = {word.arg: word for word in call.keywords if word.arg}
        own = by_name[anchor].value if anchor in by_name else given.get(anchor)
        other = by_name[foreign].value if foreign in by_name else given.get(foreign)
        axis = re.search(r"\.stride\((-?\d)\)$", file.words(other)) if other is not None else None
        if own is None or axis is None or not re.search(r"\.stride\(-?\d\)$", file.words(own)):
            return None
        passed = re.sub(r"\(-?\d\)$", f"({axis[1]})", file.words(own))
        end = file.span(by_name.get(anchor, own))[1]
        edits.append(Edit(end, end, f", {name}={passed}" if anchor in by_name else f", {passed}"))
    return edits or None
