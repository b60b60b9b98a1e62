"""Taps for variables of the usual names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from .axes import Found, Shape, shape_of, shapes_behind
from .functions import Function, call_tree, is_jit
from .places import Place, places
from .rewrite import can_be_given, sight
from .words import parse_tap

# Variables by their names in lower case, without underscores and without the T of a transposed tile.
_USUAL = {"p": "P", "pij": "P", "dp": "dP", "dpij": "dP", "ds": "dS", "dsij": "dS", "delta": "delta", "di": "delta"}
_BATCH = ("b", "off_b", "off_z", "pid_b", "pid_z", "batch", "batch_id", "batch_idx", "bid", "idx_b", "z", "i_b")
_HEAD = ("h", "off_h", "pid_h", "head", "head_id", "head_idx", "hid", "idx_h", "i_h")
_BOTH = ("off_hz", "off_zh", "off_bh", "off_hb", "bhid", "pid_bh", "pid_hz", "pid_zh", "idx_bh", "bh", "hz", "i_bh")
_HEADS = ("H", "n_heads", "nheads", "num_heads", "heads", "N_HEADS", "NUM_HEADS", "HQ")
_ROWS = {"m", "qm", "q", "i", "row", "rows", "queries"}
_COLUMNS = {"n", "kn", "k", "kv", "j", "col", "cols", "column", "columns", "keys"}


def propose(kernels: Sequence[Any]) -> list[str]:
    """Words for the taps that can be told from the names in kernels, in the order of the kernels.

    Each parses and can be stored. Only functions that compute dP or dS are looked at: the P of a forward is not yet
    divided by its sum. Where a tile's axes cannot be followed, they are guessed from names, so these are proposals.

    Args:
        kernels: launched kernels, Triton's objects or the Python functions under them.
    """
    words: dict[str, None] = {}
    for kernel in kernels:
        tree = call_tree(kernel if is_jit(kernel) else SimpleNamespace(fn=kernel))
        for function in tree:
            words.update(dict.fromkeys(_in_function(tree, function)))
    return list(words)


def _in_function(tree: Sequence[Function], function: Function) -> Iterator[str]:
    named = {variable: name for variable in function.assigned if (name := _USUAL.get(_plain(variable)))}
    if not {"dP", "dS"} & set(named.values()):
        return
    for variable, name in named.items():
        word = _word(tree, function, variable, name)
        if word is not None:
            yield word


def _plain(variable: str) -> str:
    word = variable.lower().replace("_", "")
    return word if word in _USUAL or not word.endswith("t") else word[:-1]


def _word(tree: Sequence[Function], function: Function, variable: str, name: str) -> str | None:
    found = places(function, parse_tap(f"{name}={variable}[0]"))
    if not found:
        return None
    shapes = shapes_behind(tree, function, found[-1].statement)
    heads = _heads(tree, function, found[-1], shapes)
    blocks = _blocks(function, shapes, variable, 1 if name == "delta" else 2)
    if heads is None or blocks is None:
        return None
    word = f"{name}={function.name}:{variable}[{','.join((*heads, *blocks[0]))}]{'.T' * blocks[1]}"
    factor = _scale(function, variable) if name == "dS" else None
    word += f"/{factor}" if factor else ""
    sighting = sight(tree, function, parse_tap(word))
    return word if sighting is not None and sighting.places else None


def _heads(
    tree: Sequence[Function], function: Function, place: Place, shapes: Mapping[str, Found]
) -> tuple[str, str] | None:
    """How batch and head are computed, in the function itself or in what calls it."""

    def scalar(names: Sequence[str]) -> str | None:
        here = [name for name in names if name in place.visible and shapes.get(name) in ((), None)]
        return next(iter([*here, *(name for name in names if can_be_given(tree, function, name))]), None)

    batch, head, both, count = scalar(_BATCH), scalar(_HEAD), scalar(_BOTH), scalar(_HEADS)
    if batch and head:
        return batch, head
    return (f"{both}//{count}", f"{both}%{count}") if both and count else None


def _blocks(function: Function, shapes: Mapping[str, Found], variable: str, rank: int) -> tuple[list[str], bool] | None:
    """The variables along rows and columns (or rows alone), and whether the tile is held with columns first."""
    known = [name for name, shape in shapes.items() if shape == (name,)]
    tile = shape_of(variable, function, shapes)
    if tile is not None and len(tile) == rank and all(label in known for label in tile):
        return _sorted([str(label) for label in tile])
    if tile is not None and len(tile) != rank:
        return None
    rows = _fitting(tile, [name for name in known if _kind(name) == "rows"])
    columns = _fitting(tile, [name for name in known if _kind(name) == "columns"])
    if not rows or (rank == 2 and not columns):
        return None
    return ([rows[-1], columns[-1]], _is_marked(variable)) if rank == 2 else ([rows[-1]], False)


def _sorted(labels: list[str]) -> tuple[list[str], bool] | None:
    kinds = [_kind(label) for label in labels]
    if len(labels) == 1:
        return (labels, False) if kinds == ["rows"] else None
    if labels[0] == labels[1] or kinds[0] == kinds[1]:
        return None
    is_transposed = kinds[0] == "columns" or kinds[1] == "rows"
    return (labels[::-1] if is_transposed else labels), is_transposed


def _fitting(tile: Shape, names: list[str]) -> list[str]:
    """Those of the names that a tile is known to run along, if any are; else all."""
    return [name for name in names if tile is not None and name in tile] or names


def _kind(name: str) -> str:
    """What a block runs along, by the last words of its name: offs_m, offs_qm, cols, k_idx."""
    words = set(re.split(r"_", name.lower())) - {"offs", "off", "offsets", "idx", "range", "curr"}
    is_row, is_column = bool(words & _ROWS), bool(words & _COLUMNS)
    return "" if is_row == is_column else "rows" if is_row else "columns"


def _is_marked(variable: str) -> bool:
    return _plain(variable) != variable.lower().replace("_", "")


def _scale(function: Function, variable: str) -> str | None:
    """A factor called a scale in the product that is assigned to a variable."""
    assigned = [
        node.value for node in ast.walk(function.tree)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == variable for t in node.targets)
    ]  # fmt: skip
    factors = [factor for value in assigned for factor in _factors(value)]
    return next((node.id for node in factors if isinstance(node, ast.Name) and "scale" in node.id.lower()), None)


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _factors(node.left) + _factors(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return _factors(node.func.value)
    return [node]
