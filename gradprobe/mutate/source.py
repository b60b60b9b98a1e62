"""A Python file of Triton kernels as text and syntax tree: which functions hold faults, and what lies where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..failures import TargetFailure, UsageFailure
from .mutant import Edit


@dataclass(frozen=True, eq=False)
class KernelFile:
    """A file that faults are planted in."""

    path: Path
    text: bytes
    tree: ast.Module
    functions: tuple[ast.FunctionDef, ...]
    """Those of its functions that the target reaches; all of the file's where it names none."""

    @cached_property
    def kernels(self) -> tuple[ast.FunctionDef, ...]:
        """Those under @triton.jit, which run on the device."""
        return tuple(function for function in self.functions if is_kernel(function))

    def inside_kernels(self) -> Iterator[ast.AST]:
        """Everything in the bodies of the kernels."""
        for kernel in self.kernels:
            for statement in kernel.body:
                yield from ast.walk(statement)

    @cached_property
    def hosts(self) -> tuple[ast.FunctionDef, ...]:
        """The others, which allocate and launch."""
        return tuple(function for function in self.functions if not is_kernel(function))

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.text.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def start(self, node: ast.AST) -> int:
        """Where a node begins, in bytes from the file's beginning."""
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined,no-any-return]

    def end(self, node: ast.AST) -> int:
        """Where it ends."""
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined,no-any-return]

    def words(self, node: ast.AST) -> str:
        """A node as it is written."""
        return self.text[self.start(node) : self.end(node)].decode()

    def replaced(self, node: ast.AST, words: str) -> Edit:
        """Other words in a node's place."""
        return Edit(self.start(node), self.end(node), words)

    def operator(self, node: ast.BinOp | ast.Compare, sign: str) -> Edit:
        """Where an operator's sign stands, as an edit that leaves it; between operands are only brackets beside it."""
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.left, node.comparators[0])
        at = self.text.index(sign.encode(), self.end(left), self.start(right))
        return Edit(at, at + len(sign), sign)

    def operands(self, node: ast.BinOp, sign: str) -> tuple[str, str]:
        """Both sides of an operator as they are written, with the brackets around each."""
        sign_at = self.operator(node, sign)
        left = self.text[self.start(node) : sign_at.start].decode().rstrip()
        return left, self.text[sign_at.end : self.end(node)].decode().strip()

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def parent(self, node: ast.AST) -> ast.AST:
        return self._parents[node]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node lies in, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node


def read_file(path: Path, function: str | None) -> KernelFile:
    """Reads a file of kernels.

    Args:
        function: whose kernels are meant; None, or one that the file does not define itself, for all.

    Raises:
        UsageFailure: there is none, it is no Python file, or holds no Triton kernel.
        TargetFailure: it is no Python.
    """
    text = _read(path)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise TargetFailure(f"{path} is not Python: {error}") from error
    file = KernelFile(path, text, tree, tuple(_reached(tree, function)))
    if not file.kernels:
        what = f"{path} holds no Triton kernel" + (f" that {function} reaches" if function else "")
        raise UsageFailure(
            f"{what}; faults are planted in Triton kernels", "name the file that holds them: --file KERNELS.py"
        )
    return file


def _read(path: Path) -> bytes:
    if path.suffix in (".cu", ".cuh", ".cpp", ".h"):
        raise UsageFailure(f"{path}: faults are planted in Triton kernels, not yet in CUDA C++")
    try:
        text = path.read_bytes()
        text.decode("utf-8")
    except OSError as error:
        raise UsageFailure(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageFailure(f"{path} is not written in UTF-8") from error
    return text


def is_kernel(function: ast.FunctionDef) -> bool:
    """Whether one of its decorators is `jit`, called or not."""
    return any(_last_name(decorator) == "jit" for decorator in function.decorator_list)


def _last_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST) -> str:
    """The last name of what a call calls: "load" for tl.load(...); "" for what is no call."""
    return _last_name(node) if isinstance(node, ast.Call) else ""


def _reached(tree: ast.Module, function: str | None) -> Iterator[ast.FunctionDef]:
    """The functions that a function uses by their names, and those that they use; of a class all methods."""
    top = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found = set(top) if function not in top else {function}
    waiting = sorted(found) if function in top else []
    while waiting:
        used = _names(top[waiting.pop()]) & top.keys() - found
        found |= used
        waiting += used
    for name in (name for name in top if name in found):
        yield from (node for node in ast.walk(top[name]) if isinstance(node, ast.FunctionDef))


def _names(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    inside = [node for statement in node.body for node in ast.walk(statement)]
    plain = {node.id for node in inside if isinstance(node, ast.Name)}
    return plain | {node.attr for node in inside if isinstance(node, ast.Attribute)}
