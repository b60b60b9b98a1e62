"""Shapes: the orders of axes in which targets take q, k, v and their like, as views of [B, H, L, D]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .failures import TargetFailure, UsageFailure

if TYPE_CHECKING:
    from torch import Tensor

PLAIN = "bhld"
SHAPES = (PLAIN, "blhd", "lbhd", "lhd", "hld", "bld")
# What has a row of numbers for each query row or key, and what has one number for it; in small letters.
_ROWS = ("q", "k", "v", "do", "o", "dq", "dk", "dv")
_NUMBERS = ("lse", "delta")


def parse_shapes(word: str) -> str:
    """One of SHAPES; s (sequence) and t (tokens) in a word mean l.

    Raises:
        UsageFailure: it is none of them.
    """
    shapes = word.lower().replace("s", "l").replace("t", "l")
    if shapes not in SHAPES:
        raise UsageFailure(
            f"--shapes must be one of {', '.join(SHAPES)}, got {word!r}", "the order of axes of q; s and t mean l"
        )
    return shapes


def in_words(shapes: str) -> str:
    """[B, L, H, D]."""
    return f"[{', '.join(shapes.upper())}]"


def memory_order(name: str, shapes: str) -> tuple[int, ...] | None:
    """The axes of a tensor [B, H, L, D] from the outermost to the innermost, where it is contiguous to the target.

    None of a tensor that every target takes in its own order.
    """
    if name.lower() not in _ROWS:
        return None
    missing = [letter for letter in PLAIN if letter not in shapes]
    return tuple(PLAIN.index(letter) for letter in (*missing, *shapes))


def taken(tensor: Tensor, name: str, shapes: str) -> Tensor:
    """A tensor of the case as the target takes it: a view of the same memory.

    Raises:
        TargetFailure: the tensor has several batches, or heads, and the target's shapes have no axis for them.
    """
    letters = _letters(name)
    if shapes == PLAIN or not letters:
        return tensor
    if any(size != 1 for letter, size in zip(letters, tensor.shape, strict=False) if letter not in shapes):
        raise TargetFailure(f"{name} of shape {list(tensor.shape)} cannot be passed as {in_words(shapes)}")
    kept = [letter for letter in shapes if letter in letters] if letters == PLAIN else _left(letters, shapes)
    left = tensor[tuple(slice(None) if letter in shapes else 0 for letter in letters)]
    return left.permute([_left(letters, shapes).index(letter) for letter in kept])


def given_back(tensor: Tensor, name: str, shapes: str) -> Tensor:
    """A result of the target as the case has it, the inverse of `taken`; unchanged where it has not as many axes.

    LSE and delta may also have rows before heads, as q does.
    """
    letters = _letters(name)
    left = _left(letters, shapes)
    if shapes == PLAIN or not letters or tensor.dim() != len(left):
        return tensor
    if letters == PLAIN:
        tensor = tensor.permute([shapes.index(letter) for letter in left])
    for at, letter in enumerate(letters):
        tensor = tensor if letter in shapes else tensor.unsqueeze(at)
    return tensor


def without_broadcast(tensor: Tensor, axes: str, rank: int) -> Tensor:
    """A bias or a mask as a target of that rank takes it: without the first axes that are "1"; itself with all."""
    gone = missing(axes, rank)
    return tensor[tuple(0 if at in gone else slice(None) for at in range(len(axes)))] if gone else tensor


def with_broadcast(tensor: Tensor, axes: str, rank: int) -> Tensor:
    """The inverse of `without_broadcast`; unchanged where it has another rank."""
    for at in missing(axes, rank) if tensor.dim() == rank else ():
        tensor = tensor.unsqueeze(at)
    return tensor


def missing(axes: str, rank: int) -> list[int]:
    """Which axes a target of that rank does not have."""
    return [at for at, letter in enumerate(axes) if letter == "1"][: len(axes) - rank]


def sizes_taken(sizes: tuple[int, ...], name: str, shapes: str) -> tuple[int, ...]:
    """The sizes of a tensor of the case as the target has it."""
    letters = _letters(name)
    if shapes == PLAIN or not letters:
        return sizes
    kept = shapes if letters == PLAIN else "".join(_left(letters, shapes))
    return tuple(sizes[letters.index(letter)] for letter in kept)


def _letters(name: str) -> str:
    return PLAIN if name.lower() in _ROWS else "bhl" if name.lower() in _NUMBERS else ""


def _left(letters: str, shapes: str) -> list[str]:
    return [letter for letter in letters if letter in shapes]
