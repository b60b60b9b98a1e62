"""Which layout each tensor of a run has, in words and back: "contiguous", "distinct", "do=expanded,q=blhd"."""

from __future__ import annotations

from .case import OUTPUTS
from .failures import UsageFailure, did_you_mean

Assigned = tuple[tuple[str, str], ...]
"""(tensor or "all", layout); a later one wins over an earlier one."""
LAYOUTS = ("contiguous", "blhd", "packed", "expanded", "distinct", "distinct-unit", "strided-last", "offset", "huge")
# The layout of values from a file: where they lay when they were saved.
AS_SAVED = "as-saved"
# As `huge` lies, scaled down: what is right so, and wrong there, holds an offset in 32 bits.
SCALED = "huge-scaled"
KNOWN = (*LAYOUTS, SCALED, AS_SAVED)
TENSORS = (
    "q", "k", "v", "do", "o", "lse", "delta", "bias", "tau", "alibi", "mask", "sinks", "keep", "seqlens",
    "cu_seqlens_q", "cu_seqlens_k", *OUTPUTS,
)  # fmt: skip
DEFAULT_RUNS = ((), (("all", "distinct"),), (("do", "expanded"),))
# Of values from a file. Not do=expanded, whose ones would take the place of the real dO.
SAVED_RUNS = ((("all", AS_SAVED),), (), (("all", "distinct"),))
# What shows strides of a target that takes no last stride but 1.
UNIT_RUN = (("all", "distinct-unit"),)


def run_name(assigned: Assigned) -> str:
    """The name of a run: "contiguous", "distinct" (all tensors), "do=expanded,q=blhd"."""
    named = [layout if tensor == "all" else f"{tensor}={layout}" for tensor, layout in assigned]
    return ",".join(named) or "contiguous"


def planned_runs(asked: tuple[Assigned, ...], *, are_saved: bool) -> tuple[Assigned, ...]:
    """The assignment of each run of a check: what was asked for, else the default.

    Args:
        are_saved: whether the values are from a file, so that a tensor which a run does not name lies as it was saved.
    """
    if not are_saved:
        return asked or DEFAULT_RUNS
    return tuple(_else_as_saved(assigned) for assigned in asked) or SAVED_RUNS


def _else_as_saved(assigned: Assigned) -> Assigned:
    # Of a run that is called contiguous, nothing is left to lie as it did.
    named = {tensor for tensor, _ in assigned}
    return assigned if not named or "all" in named else (("all", AS_SAVED), *assigned)


def parse_layout(word: str) -> tuple[str, str]:
    """(tensor, layout) of a word such as "do=expanded"; "distinct" is of all.

    Raises:
        UsageFailure: the word has another form, or names no known tensor or layout.
    """
    if word in KNOWN:
        return "all", word
    tensor, equals, layout = word.partition("=")
    tensor = tensor.lower()
    if not equals:
        way_out = did_you_mean(word, KNOWN, "") or "for example --layout do=expanded"
        raise UsageFailure(f"--layout takes TENSOR=NAME or NAME, got {word!r}", way_out)
    if tensor not in (*TENSORS, "all"):
        raise UsageFailure(f"--layout: no tensor {tensor!r}", did_you_mean(tensor, ("all", *TENSORS)))
    if layout not in KNOWN:
        raise UsageFailure(f"--layout: no layout {layout!r}", did_you_mean(layout, KNOWN))
    return tensor, layout


def parse_run(word: str) -> Assigned:
    """The assignment of a run with this name: the inverse of `run_name`.

    Raises:
        UsageFailure: a part of it is neither a layout nor has the form of `parse_layout`.
    """
    if word == "contiguous":
        return ()
    return tuple(parse_layout(part.strip()) for part in word.split(","))
