"""`dS=ds[b,h,offs_m,offs_n]` -> a Tap: a variable of a kernel and where its tiles belong."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ...model.failures import UsageFailure, did_you_mean
from ...model.intermediates import lookup, names

EXAMPLE = "write NAME=VARIABLE[INDEX,...] or NAME=KERNEL:VARIABLE[INDEX,...], for example dS=ds[b,h,offs_m,offs_n]"


@dataclass(frozen=True)
class Tap:
    """A variable whose value is stored, and the intermediate that it is."""

    word: str
    """As the user wrote it."""
    intermediate: str
    function: str
    """The kernel, or the function called from it, that has the variable; or a part of its name; "" for any."""
    variable: str
    value: str
    """The expression that is stored: the variable, or one of it, such as `ds / scale`."""
    indices: tuple[str, ...]
    """An expression for each axis of the intermediate: a scalar, or a block along an axis of the tile."""
    is_transposed: bool
    """Whether the tile's axes are said to come in the other order."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the indices and the value read besides the variable itself."""
        return tuple(name for name in _names(*self.indices, self.value) if name != self.variable)

    @property
    def index_names(self) -> frozenset[str]:
        """What the indices read."""
        return frozenset(_names(*self.indices))

    def failure(self, problem: str, way_out: str) -> UsageFailure:
        """What is wrong with it."""
        return UsageFailure(f"tap {self.word!r}{problem}", way_out)


def _names(*texts: str) -> list[str]:
    found: list[str] = []
    for text in texts:
        nodes = [node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]
        found += [node.id for node in sorted(nodes, key=lambda node: node.col_offset)]
    return list(dict.fromkeys(found))


def parse_tap(word: str) -> Tap:
    """The tap that a word describes.

    The variable is indexed once, in the order of the intermediate's axes: `ds[b,h,offs_m,offs_n]`. Where it differs
    from the intermediate by a factor, the word may say so: `ds[b,h,offs_m,offs_n] / scale`. `.T` behind the variable or
    its index says that the tile is held transposed.

    Raises:
        UsageFailure: not of that form, or no such intermediate.
    """
    name, equals, rest = word.partition("=")
    if not equals:
        raise UsageFailure(f"tap {word!r} does not say which intermediate it is", EXAMPLE)
    name = name.strip()
    row = lookup(name)
    if row is None:
        raise UsageFailure(f"tap {word!r}: there is no intermediate {name!r}", did_you_mean(name, names()))
    function, text = re.match(r"\s*(?:([A-Za-z_]\w*)\s*:(?!=))?\s*(.*?)\s*\Z", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    indexed = _Indexed()
    try:
        value = indexed.visit(ast.parse(text, mode="eval")).body
    except (SyntaxError, ValueError):
        raise UsageFailure(f"tap {word!r}: {text!r} is not an expression", EXAMPLE) from None
    if len(indexed.found) != 1:
        raise UsageFailure(f"tap {word!r} must index one variable once, got {len(indexed.found) or 'none'}", EXAMPLE)
    variable, indices, transposed = indexed.found[0]
    if (odd := next(filter(_is_no_position, indices), None)) is not None:
        problem = f"tap {word!r}: {ast.unparse(odd)!r} is neither a position nor a block of positions"
        raise UsageFailure(problem, EXAMPLE)
    return Tap(
        word, row.name, function or "", variable, ast.unparse(value), tuple(map(ast.unparse, indices)), transposed
    )


_NO_EXPRESSION = (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield)


def _is_no_position(index: ast.expr) -> bool:
    is_odd = isinstance(index, (ast.Slice, ast.Starred))
    is_odd |= isinstance(index, ast.Constant) and type(index.value) is not int
    return is_odd or any(isinstance(node, _NO_EXPRESSION) for node in ast.walk(index))


class _Indexed(ast.NodeTransformer):
    """Takes the index off the variable and remembers it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, list[ast.expr], bool]] = []

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        is_turned = node.attr == "T" and isinstance(node.value, ast.Subscript)
        return (self._taken(node.value, True) if is_turned else None) or self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self._taken(node, False) or self.generic_visit(node)

    def _taken(self, node: ast.expr, transposed: bool) -> ast.Name | None:
        assert isinstance(node, ast.Subscript)
        base = node.value
        if isinstance(base, ast.Attribute) and base.attr == "T":
            base, transposed = base.value, not transposed
        if not isinstance(base, ast.Name):
            return None
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        self.found.append((base.id, list(indices), transposed))
        return base
