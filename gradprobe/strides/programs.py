"""The layouts that real programs make: several tensors at once, as autograd and common code leave them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..cases.layouts import AS_SAVED, Assigned
from ..cases.placement import Placement, placements_of
from .trials import PROGRAM, Trial


def programs_of(shapes: Mapping[str, tuple[int, ...]], *, fast: bool) -> tuple[Trial, ...]:
    """The layouts of programs, of the tensors that the target is given.

    Args:
        shapes: of those tensors, by name.
        fast: none of them thorough.
    """
    written = (
        Trial(title, PROGRAM, _existing(assigned, shapes), thorough=not fast) for title, assigned in _written(shapes)
    )
    concatenated = (
        Trial(title, PROGRAM, (("do", AS_SAVED),), placements={"do": place}, thorough=not fast)
        for title, place in _concatenated(shapes["do"])
    )  # fmt: skip
    return (*written, *concatenated)


def _written(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Assigned]]:
    packed = {name: "packed" for name in ("q", "k", "v", "dq", "dk", "dv")}
    yield "packed qkv, dO a [B, L, H, D] view", (*packed.items(), ("do", "blhd"), ("o", "blhd"))
    pair = {name: "packed" for name in ("k", "v", "dk", "dv")}
    rest = tuple((name, "blhd") for name in ("q", "do", "o", "dq"))
    yield "packed kv, q and dO [B, L, H, D] views", (*pair.items(), *rest)
    views = tuple((name, "blhd") for name in ("q", "k", "v", "o"))
    yield "out.sum() of [B, L, H, D] views", (*views, ("do", "expanded"))
    yield "[B, L, H, D] views, dO contiguous", views
    if "o" in shapes:
        yield "O saved as a [B, L, H, D] view, dO contiguous", (("o", "blhd"),)
        yield "O saved contiguous, dO a [B, L, H, D] view", (("do", "blhd"),)


def _existing(assigned: Assigned, shapes: Mapping[str, tuple[int, ...]]) -> Assigned:
    return tuple((name, layout) for name, layout in assigned if name in shapes)


def _concatenated(shape: tuple[int, ...]) -> Iterator[tuple[str, Placement]]:
    """Where dO lies when O was one of two parts of torch.cat: as autograd itself hands it back."""
    for axis, what in ((1, "heads"), (2, "rows"), (3, "head dims")):
        yield f"torch.cat of {what}, its backward", _gradient_of_cat(shape, axis)


def _gradient_of_cat(shape: tuple[int, ...], axis: int) -> Placement:
    import torch

    first, second = (torch.zeros(shape, requires_grad=True) for _ in range(2))
    seen: list[Any] = []
    kept = second.view_as(second)
    kept.register_hook(seen.append)
    whole = torch.cat([first, kept], axis)
    whole.backward(torch.zeros_like(whole))
    return placements_of({"do": seen[0]})["do"]
