"""Axes: the orders in which a reference takes its tensors, there and back."""

from __future__ import annotations

from torch import Tensor

MERGED = "bl(hd)"
SHAPES = ("bhld", "hld", "ld", "blhd", "lhd", MERGED)
"""The order of axes in which a reference may take q, k, v and dO, in which they are tried."""
LETTERS = {"q": "bhld", "k": "bhld", "v": "bhld", "do": "bhld", "o": "bhld", "lse": "bhl", "delta": "bhl", "P": "bhlL"}
AXES = {name: "bhld" for name in ("O", "dQ", "dK", "dV")} | {name: "bhl" for name in ("LSE", "delta")}
AXES |= {name: "bhlL" for name in ("P", "S", "dP", "dS")}
"""Of each result."""


def shaped(tensor: Tensor, axes: str, shapes: str) -> Tensor:
    """A tensor of axes such as bhld, or bhlL of a matrix, as a function of these shapes takes it."""
    if shapes == MERGED:
        return tensor.transpose(1, 2).flatten(2) if axes == "bhld" else tensor
    tensor = tensor[tuple(slice(None) if letter in shapes + "L" else 0 for letter in axes)]
    left = [letter for letter in axes if letter in shapes + "L"]
    order = [letter for letter in shapes if letter in left] if axes == "bhld" else left
    return tensor.permute([left.index(letter) for letter in order]).contiguous()


def _shapes(name: str, shapes: str, q: Tensor) -> list[tuple[int, ...]]:
    """The shapes in which a function of these shapes may return a result."""
    b, h, m, d = q.shape
    sizes = {"b": b, "h": h, "l": m, "d": d, "L": m}
    axes = AXES[name]
    if shapes == MERGED:
        return [(b, m, h * d)] if axes == "bhld" else [tuple(sizes[letter] for letter in axes)]
    own = shapes if axes == "bhld" else "".join(letter for letter in axes if letter in shapes + "L")
    shape = tuple(sizes[letter] for letter in own)
    return [shape, (*shape, 1)] if axes == "bhl" else [shape]


def fits(tensor: Tensor, name: str, shapes: str, q: Tensor) -> bool:
    return tuple(tensor.shape) in _shapes(name, shapes, q)


def settled(tensor: Tensor, name: str, shapes: str, q: Tensor) -> Tensor:
    """A result with the axes of the table of intermediates; as it came where it has another shape."""
    if not fits(tensor, name, shapes, q):
        return tensor
    axes = AXES[name]
    if shapes == MERGED:
        heads = q.shape[1]
        return tensor.unflatten(2, (heads, -1)).transpose(1, 2) if axes == "bhld" else tensor
    tensor = tensor.reshape(_shapes(name, shapes, q)[0])
    if axes == "bhld":
        left = [letter for letter in axes if letter in shapes]
        tensor = tensor.permute([shapes.index(letter) for letter in left])
    for at, letter in enumerate(axes):
        tensor = tensor if letter in shapes + "L" else tensor.unsqueeze(at)
    return tensor


def in_words(shapes: str) -> str:
    """`B, H, L, D`, or `B, L, H*D`."""
    return "B, L, H*D" if shapes == MERGED else ", ".join(shapes.upper())
