"""Taps for variables of the usual names."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ...model.intermediates import in_kernels, plain
from ...source.triton_source import Function, call_tree, is_jit
from .axes import Found, Shape, order_of, shape_of, shapes_behind
from .places import TapPlace, places
from .rewrite import can_be_given, sight
from .tap import parse_tap

# What kernels call tiles and delta: in lower case, without underscores and without the T of a transposed tile.
TILES = in_kernels("P", "dP", "dS", "delta")
# Before the names of tiles, as in b_ds.
_TILE = "b_"
_BATCH = ("b", "off_b", "off_z", "pid_b", "pid_z", "batch", "batch_id", "batch_idx", "bid", "idx_b", "z", "i_b")
_HEAD = ("h", "off_h", "pid_h", "head", "head_id", "head_idx", "hid", "idx_h", "i_hq", "i_h")
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
            pairs = [(variable, TILES.get(plain_name(variable, TILES), "")) for variable in function.assigned]
            if {"dP", "dS"} & {name for _, name in pairs}:
                found = [_word(tree, function, variable, name) for variable, name in pairs if name]
                words |= dict.fromkeys(word for word in found if word)
    return list(words)


def plain_name(variable: str, known: Container[str]) -> str:
    """A variable's name as a table of names has it: "ds" of b_dsT."""
    word = plain(variable.lower().removeprefix(_TILE))
    return word if word in known or not word.endswith("t") else word[:-1]


def _word(tree: Sequence[Function], function: Function, variable: str, name: str) -> str:
    """The first word that can be stored without one tile in another's place; "" where there is none."""
    found = places(function, parse_tap(f"{name}={variable}[0]"))
    if not found:
        return ""
    shapes = shapes_behind(tree, function, found[-1].statement)
    heads = _heads(tree, function, found[-1], shapes)
    if heads is None:
        return ""
    # A factor called a scale in the product that is assigned to dS.
    factors = [factor for value in function.assigned_to(variable) for factor in _factors(value) if name == "dS"]
    scale = next((node.id for node in factors if isinstance(node, ast.Name) and "scale" in node.id.lower()), "")
    tail = f"/{scale}" if scale else ""
    for blocks, is_transposed in _blocks(function, shapes, variable, 1 if name == "delta" else 2):
        word = f"{name}={function.name}:{variable}[{','.join((*heads, *blocks))}]{'.T' * is_transposed}{tail}"
        sighting = sight(tree, function, parse_tap(word))
        if sighting is not None and sighting.places and not sighting.stale:
            return word
    return ""


def _heads(
    tree: Sequence[Function], function: Function, place: TapPlace, shapes: Mapping[str, Found]
) -> tuple[str, str] | None:
    """How batch and head are computed, in the function itself or in what calls it."""

    def scalar(names: Sequence[str]) -> str | None:
        here = [name for name in names if name in place.visible and shapes.get(name) in ((), None)]
        return next(iter([*here, *(name for name in names if can_be_given(tree, function, name))]), None)

    batch, head, both, count = scalar(_BATCH), scalar(_HEAD), scalar(_BOTH), scalar(_HEADS)
    if batch and head:
        return batch, head
    return (f"{both}//{count}", f"{both}%{count}") if both and count else None


def _blocks(
    function: Function, shapes: Mapping[str, Found], variable: str, rank: int
) -> Iterator[tuple[list[str], bool]]:
    """What may index rows and columns (or rows alone), and whether the tile is held with columns first.

    First come the blocks that the tile is known to run along, then others that are named as rows or columns, then the
    expressions assigned to these. Such an expression is right in every turn of a loop, also where the block is not.
    """
    tile = shape_of(variable, function, shapes)
    if tile is not None and len(tile) != rank:
        return
    axes = [_candidates(function, shapes, tile, kind) for kind in ("rows", "columns")[:rank]]
    for blocks in itertools.product(*axes):
        order = order_of(tile, [shape_of(text, function, shapes) for text in blocks]) if rank == 2 else False
        is_marked = plain_name(variable, TILES) != plain(variable.lower().removeprefix(_TILE))
        yield list(blocks), is_marked if order is None else order


def _candidates(function: Function, shapes: Mapping[str, Found], tile: Shape, kind: str) -> list[str]:
    known = [name for name, shape in shapes.items() if isinstance(shape, tuple) and len(shape) == 1]
    named = [name for name in known if _kind(name) == kind]
    along = [name for name in named if tile is not None and set(tile) & set(shapes[name] or ())]
    first = sorted(named, key=lambda name: (name not in along, name not in (tile or ())))
    return first + [ast.unparse(value) for name in first for value in function.assigned_to(name)]


def _kind(name: str) -> str:
    """What a block runs along, by the last words of its name: offs_m, offs_qm, cols, k_idx."""
    words = set(re.split(r"_", name.lower())) - {"offs", "off", "offsets", "idx", "range", "curr"}
    if "mask" in words:  # which elements there are, and not which they are
        return ""
    is_row, is_column = bool(words & _ROWS), bool(words & _COLUMNS)
    return "" if is_row == is_column else "rows" if is_row else "columns"


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _factors(node.left) + _factors(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return _factors(node.func.value)
    return [node]
