"""How tensors lie, in words and back, and the order of axes that a target takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .failures import TargetFailure, UsageFailure, did_you_mean
from .intermediates import GRADIENT_OF

if TYPE_CHECKING:
    from torch import Tensor

# What a target may be given to write its gradients into: the intermediate of each has the same name, in other letters.
OUTPUTS = tuple(name.lower() for name in GRADIENT_OF.values())
Sizes = tuple[int, ...]
Assigned = tuple[tuple[str, str], ...]
"""(tensor or "all", layout); a later one wins."""
LAYOUTS = (
    "contiguous", "blhd", "packed", "expanded", "distinct", "distinct-unit", "strided-last", "offset", "huge",
)  # fmt: skip
# Where values from a file lay when they were saved.
AS_SAVED = "as-saved"
# `huge` scaled down: what is right here and wrong there holds an offset in 32 bits.
SCALED = "huge-scaled"
# `distinct-unit` with each tensor's axes in their own order: what is made like one of them is contiguous.
ORDERED = "distinct-ordered"
KNOWN = (*LAYOUTS, SCALED, ORDERED, AS_SAVED)
TENSORS = (
    "q", "k", "v", "do", "o", "lse", "delta", "bias", "tau", "alibi", "mask", "sinks", "keep", "seqlens",
    "cu_seqlens_q", "cu_seqlens_k", *OUTPUTS,
)  # fmt: skip
DEFAULT_RUNS = ((), (("all", "distinct"),), (("do", "expanded"),))
# Of values from a file. Not do=expanded, whose ones would take the place of the real dO.
SAVED_RUNS = ((("all", AS_SAVED),), (), (("all", "distinct"),))
# What shows strides of a target that takes no last stride but 1.
UNIT_RUN = (("all", "distinct-unit"),)
# And of one that refuses where what it makes like its inputs is not contiguous.
ORDERED_RUN = (("all", ORDERED),)


def run_name(assigned: Assigned) -> str:
    named = [layout if tensor == "all" else f"{tensor}={layout}" for tensor, layout in assigned]
    return ",".join(named) or "contiguous"


def planned_runs(asked: tuple[Assigned, ...], *, are_saved: bool) -> tuple[Assigned, ...]:
    """Saved values lie as they did, if not named."""
    if not are_saved:
        return asked or DEFAULT_RUNS
    planned = list[Assigned]()
    for assigned in asked:
        # Of a run that is called contiguous, nothing is left to lie as it did.
        is_whole = not assigned or "all" in dict(assigned)
        planned.append(assigned if is_whole else (("all", AS_SAVED), *assigned))
    return tuple(planned) or SAVED_RUNS


def parse_layout(word: str, option: str = "--layout") -> tuple[str, str]:
    """ "do=expanded" or "distinct". Raises UsageFailure."""
    if word in KNOWN:
        return "all", word
    tensor, equals, layout = word.partition("=")
    tensor = tensor.lower()
    if not equals:
        way_out = did_you_mean(word, KNOWN, "") or f"for example {option} do=expanded"
        raise UsageFailure(f"{option} takes TENSOR=NAME or NAME, got {word!r}", way_out)
    for kind, part, known in (("tensor", tensor, ("all", *TENSORS)), ("layout", layout, KNOWN)):
        if part not in known:
            raise UsageFailure(f"{option}: no {kind} {part!r}", did_you_mean(part, known))
    return tensor, layout


def parse_run(word: str) -> Assigned:
    if word == "contiguous":
        return ()
    return tuple(parse_layout(part.strip(), "--runs") for part in word.split(","))


PLAIN = "bhld"
SHAPES = (PLAIN, "blhd", "lbhd", "lhd", "hld", "bld")
# What has a row of numbers for each query row or key, and what has one number for it; in small letters.
_LETTERS = dict.fromkeys(("q", "k", "v", "do", "o", "dq", "dk", "dv"), PLAIN)
_LETTERS |= {"lse": "bhl", "delta": "bhl"}


def parse_shapes(word: str) -> str:
    """s (sequence) and t (tokens) mean l. Raises UsageFailure."""
    shapes = word.lower().replace("s", "l").replace("t", "l")
    if shapes not in SHAPES:
        way_out = f"{did_you_mean(word, SHAPES, '')} the axes of q; s and t mean l".strip()
        raise UsageFailure(f"--shapes must be one of {', '.join(SHAPES)}, got {word!r}", way_out)
    return shapes


def in_words(shapes: str) -> str:
    return f"[{', '.join(shapes.upper())}]"


def memory_order(name: str, shapes: str) -> Sizes | None:
    """The axes of [B, H, L, D], outermost first, where it is contiguous to the target; None of other tensors."""
    letters, own = _axes(name, shapes)
    absent = [letter for letter in PLAIN if letter not in shapes]
    return tuple(map(PLAIN.index, (*absent, *own))) if letters == PLAIN else None


def taken(tensor: Tensor, name: str, shapes: str) -> Tensor:
    """As the target takes it. Raises TargetFailure: it has no axis for batches."""
    letters, own = _axes(name, shapes)
    if letters == own:
        return tensor
    index = tuple(slice(None) if letter in own else 0 for letter in letters)
    if any(at == 0 and size != 1 for at, size in zip(index, tensor.shape, strict=False)):
        words = f"{name} of shape {list(tensor.shape)} cannot be passed as {in_words(shapes)}"
        raise TargetFailure(words)
    left = [letter for letter in letters if letter in own]
    return tensor[index].permute([*map(left.index, own)])


def given_back(tensor: Tensor, name: str, shapes: str) -> Tensor:
    """The inverse of `taken`; unchanged where a result has not as many axes."""
    letters, own = _axes(name, shapes)
    if letters == own or tensor.dim() != len(own):
        return tensor
    tensor = tensor.permute([own.index(letter) for letter in letters if letter in own])
    for at, letter in enumerate(letters):
        tensor = tensor if letter in own else tensor.unsqueeze(at)
    return tensor


def sizes_taken(sizes: Sizes, name: str, shapes: str) -> Sizes:
    letters, own = _axes(name, shapes)
    return sizes if letters == own else tuple(sizes[letters.index(letter)] for letter in own)


def _axes(name: str, shapes: str) -> tuple[str, str]:
    """Its axes in the case, and in the target's order."""
    letters = _LETTERS.get(name.lower(), "")
    own = shapes if letters == PLAIN else "".join(axis for axis in letters if axis in shapes)
    return letters, own


def without_broadcast(tensor: Tensor, axes: str, rank: int) -> Tensor:
    """As the target takes it: without the first axes that are "1"."""
    gone = missing(axes, rank)
    index = tuple(0 if at in gone else slice(None) for at in range(len(axes)))
    return tensor[index] if gone else tensor


def with_broadcast(tensor: Tensor, axes: str, rank: int) -> Tensor:
    """The inverse; unchanged where it has another rank."""
    for at in missing(axes, rank) if tensor.dim() == rank else ():
        tensor = tensor.unsqueeze(at)
    return tensor


def missing(axes: str, rank: int) -> list[int]:
    return [at for at, letter in enumerate(axes) if letter == "1"][: len(axes) - rank]


def dense_strides(shape: Sizes, order: Sequence[int] = (), last: int = 1) -> Sizes:
    """Without gaps but for the innermost stride's."""
    strides = [0] * len(shape)
    for axis in reversed(order or range(len(shape))):
        strides[axis] = last
        last *= max(shape[axis], 1)
    return tuple(strides)


def spanned(shape: Sizes, strides: Sizes) -> int:
    """The elements from the first to the last one."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
