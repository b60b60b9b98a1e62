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


def _own(axes: str, shapes: str) -> str:
    """The axes of a tensor bhld, or bhlL of a matrix, as a function of these shapes has it."""
    left = "".join(letter for letter in axes if letter in shapes + "L")
    return shapes if axes == "bhld" else left


def shaped(tensor: Tensor, axes: str, shapes: str) -> Tensor:
    """A tensor as a function of these shapes takes it."""
    if shapes == MERGED:
        return tensor.transpose(1, 2).flatten(2) if axes == "bhld" else tensor
    own = _own(axes, shapes)
    tensor = tensor[tuple(slice(None) if letter in own else 0 for letter in axes)]
    left = [letter for letter in axes if letter in own]
    return tensor.permute([left.index(letter) for letter in own]).contiguous()


def settled(tensor: Tensor, name: str, shapes: str, q: Tensor) -> Tensor:
    """A result with the axes of the table of intermediates; as it came where it has another shape."""
    (b, h, m, d), axes = q.shape, AXES[name]
    if shapes == MERGED and axes == "bhld":
        fits = tensor.shape == (b, m, h * d)
        return tensor.unflatten(2, (h, -1)).transpose(1, 2) if fits else tensor
    own, sizes = _own(axes, shapes), {"b": b, "h": h, "l": m, "d": d, "L": m}
    shape = tuple(sizes[letter] for letter in own)
    if tensor.shape != shape and (axes != "bhl" or tensor.shape != (*shape, 1)):
        return tensor
    tensor = tensor.reshape(shape).permute([own.index(letter) for letter in axes if letter in own])
    return tensor[tuple(slice(None) if letter in own else None for letter in axes)]


def fits(tensor: Tensor, name: str, shapes: str, q: Tensor) -> bool:
    sizes = dict(zip("bhldL", (*q.shape, q.shape[2]), strict=True))
    return settled(tensor, name, shapes, q).shape == tuple(sizes[letter] for letter in AXES[name])


def in_words(shapes: str) -> str:
    """`B, H, L, D`, or `B, L, H*D`."""
    return "B, L, H*D" if shapes == MERGED else ", ".join(shapes.upper())
