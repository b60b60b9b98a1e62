"""Strides that launches pass: one that a kernel was never passed, and one of another tensor than its parameter says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..kernel_file import KernelFile, called
from ..operators.addresses import parameters, stride_of
from ..text import Edit
from ..triton_source import bound_in
from .alike import core, in_scope
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
        axis = re.search(r"\.stride\((-?\d)\)$", file.text_of(other)) if other is not None else None
        if own is None or axis is None or not re.search(r"\.stride\(-?\d\)$", file.text_of(own)):
            return None
        passed = re.sub(r"\(-?\d\)$", f"({axis[1]})", file.text_of(own))
        end = file.span(by_name.get(anchor, own))[1]
        edits.append(Edit(end, end, f", {name}={passed}" if anchor in by_name else f", {passed}"))
    return edits or None


def owner_meant(file: KernelFile, spot: Spot) -> Iterator[tuple[float, tuple[Edit, ...]]]:
    """`do.stride(1)`, `*do.stride()` for another tensor's, where the parameter of that place is called stride_doh."""
    inside = [node for root in spot.roots for node in ast.walk(root)]
    for kernel in file.kernels if spot.function not in file.kernels else ():
        for call in calls_of(file, kernel.name):
            for node, tensor in _owners(call, parameters(kernel)):
                if node in inside and core(node.id) != tensor:
                    meant = [name for name in in_scope(file, spot.function) if core(name) == tensor]
                    yield from ((-1.0, (file.replaced(node, name),)) for name in meant)


def strides_of_what_is_passed(file: KernelFile, spot: Spot) -> Iterator[tuple[float, tuple[Edit, ...]]]:
    """`scaled.stride(i)` for each `k.stride(i)` of a launch that passes what was made of k, and not k itself."""
    inside = [node for root in spot.roots for node in ast.walk(root)]
    for kernel in file.kernels if spot.function not in file.kernels else ():
        for call in calls_of(file, kernel.name):
            arguments = [*call.args, *(word.value for word in call.keywords)]
            passed = [one.id for one in arguments if isinstance(one, ast.Name)]
            owners = [one.func.value for one in arguments if called(one) == "stride"]  # type: ignore[attr-defined]
            absent = {one.id for one in owners if isinstance(one, ast.Name)} - set(passed)
            for name, of in ((one, of) for one in passed for of in absent & _made_of(spot.function, one)):
                others = [one for one in owners if isinstance(one, ast.Name) and one.id == of]
                if any(node in inside for node in others):
                    yield -1.0, tuple(file.replaced(node, name) for node in others)


def _made_of(function: ast.FunctionDef, name: str) -> set[str]:
    """The names in what a function assigns to one."""
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Assign) and name in bound_in([node])]
    return {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)} - {name}


def _owners(call: ast.Call, names: list[str]) -> Iterator[tuple[ast.Name, str]]:
    """Whose strides a call passes, each with the tensor that the parameters of that place are called after."""
    at = 0
    for argument in call.args:
        passed = argument.value if isinstance(argument, ast.Starred) else argument
        parts = stride_of(names[at]) if at < len(names) else None
        is_stride = isinstance(passed, ast.Call) and called(passed) == "stride"
        if is_stride and parts and isinstance(owner := passed.func.value, ast.Name):  # type: ignore[attr-defined]
            yield owner, core(parts[0])
        if isinstance(argument, ast.Starred):
            if not is_stride or parts is None:
                return
            of = [stride_of(name) for name in names[at:]]
            at += next((many for many, each in enumerate(of) if each is None or each[0] != parts[0]), len(of))
        else:
            at += 1
    by_name = ((word.value, stride_of(word.arg)) for word in call.keywords if word.arg)
    for value, parts in by_name:
        if parts and called(value) == "stride" and isinstance(owner := value.func.value, ast.Name):  # type: ignore[attr-defined]
            yield owner, core(parts[0])
