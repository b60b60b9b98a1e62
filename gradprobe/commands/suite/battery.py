"""The battery: cases that each expose a class of faults which others hide."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ...model.memory_finding import HUGE


@dataclass(frozen=True)
class Item:
    """One case of the battery."""

    number: int
    """Of its item, which may have several cases; 0 of a combination."""
    title: str
    options: Mapping[str, Any]
    """Words of the command line, as `CheckRequest` holds them; empty where the target is not asked."""
    why_not: str
    """Why the target is not asked, by its signature; "" where it is."""
    beyond: str = ""
    """What it asks for that no parameter of the target says that it takes; "" where there is no such thing."""
    is_alone: bool = False
    """Whether it shows what no pair of factors does."""

    @property
    def name(self) -> str:
        """Its title among all checks."""
        return f"battery {self.number}: {self.title}" if self.number else f"battery: {self.title}"


@dataclass(frozen=True)
class _Row:
    number: int
    title: str
    layout: tuple[str, ...] = ("all=contiguous",)
    """What is not about a layout runs contiguous, which every target takes; () for the three default runs."""
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """The parameters without which a target does not take it."""
    not_lazy: str = ""
    """Why the lazy family does not have it; "" where it does."""
    of_lazy: bool = False
    """Whether the lazy family alone has it, for what it does not have."""
    rows: int = 37
    """37 is two tiles and a partial one of 16; of 32, one and a partial one."""
    keys: int = 37
    batch: int = 2
    heads: int = 3
    beyond: str = ""
    """What it asks for that no signature need tell."""
    told_by: frozenset[str] = frozenset()
    """The parameters that tell it nevertheless."""
    is_alone: bool = False
    """Whether it shows what no pair of factors does."""


_SQUARE = "lazy attention has as many keys as rows"
_CAUSAL = "the lazy family is always causal"
_UNGROUPED = "the lazy family has as many key heads as heads"
_NO_WINDOW = "the lazy family has no window"
_ONE_DIM = "the lazy family has one head dim for q, k and v"
_GROUPED = {"heads": 6, "kv_heads": 2}
FEWER = "fewer key heads than heads"
UNEVEN = "a head dim that is no power of two"
OWN_DIM = "a head dim of v that is not that of q and k"
TWO_LENGTHS: dict[str, Any] = {
    "beyond": "lengths of queries and keys that differ",
    "told_by": frozenset({"align", "cu_seqlens_k", "max_seqlen_k"}),
}
# Three tiles of 32 rows and 4 rows more, six of 16 keys and 4 keys more; 45 and 21 end inside a tile of either.
_LONG: dict[str, Any] = {"batch": 1, "heads": 2, "rows": 100, "keys": 100}
_LONGER: dict[str, Any] = _LONG | {"rows": 200, "keys": 200}
_WIDE: dict[str, Any] = {"rows": 37, "keys": 50, "not_lazy": _SQUARE} | TWO_LENGTHS
_TALL: dict[str, Any] = {"rows": 50, "keys": 37, "not_lazy": _SQUARE} | TWO_LENGTHS

# The simplest first.
_ROWS = (
    _Row(1, "contiguous"),
    _Row(2, "distinct strides", ("all=distinct",)),
    _Row(2, "distinct strides, the last 1", ("all=distinct-unit",)),
    _Row(3, "dO transposed", ("do=blhd",)),
    _Row(4, "dO expanded", ("do=expanded",)),
    _Row(5, "packed qkv", ("q=packed", "k=packed", "v=packed")),
    _Row(6, "heads 6/2", options=_GROUPED, not_lazy=_UNGROUPED, beyond=FEWER),
    _Row(6, "heads 6/2, a bias each", (), _GROUPED | {"bias": True, "bias_axes": "hmn"}, ("bias",),
         _UNGROUPED, batch=1, beyond=FEWER),
    _Row(6, "6 heads, a tau each", options={"heads": 6, "tau": "-0.5,0.5,-3,1,-1.5,2"}, of_lazy=True, is_alone=True),
    _Row(7, "M < N", **_WIDE),
    _Row(7, "M < N, causal", options={"causal": True}, needs=("causal",), **_WIDE),
    _Row(8, "M > N, causal", options={"causal": True}, needs=("causal",), **_TALL),
    _Row(8, "rows that see no key", options={"mask": "dead-rows"}, needs=("mask",),
         not_lazy="the lazy family has no mask"),
    _Row(8, "an empty sequence, padded", options={"seqlens": "20,0"}, needs=("seqlens",), is_alone=True),
    _Row(8, "an empty sequence, packed", options={"cu_seqlens": "0,20,20,57"}, needs=("cu_seqlens",),
         not_lazy="the lazy family packs no sequences", is_alone=True),
    _Row(9, "not causal", options={"causal": False}, not_lazy=_CAUSAL, **_LONG),
    _Row(9, "window 45,21", options={"window": "45,21"}, needs=("window",), not_lazy=_NO_WINDOW, **_LONG),
    _Row(9, "window 45, causal", options={"window": "45,-1", "causal": True}, needs=("window", "causal"),
         not_lazy=_NO_WINDOW, **_LONG),
    _Row(9, "bias window 45", options={"bias_window": 45}, needs=("bias",), of_lazy=True, **_LONG),
    _Row(10, "logits x4", options={"pattern": "large"}),
    _Row(10, "logits to 100", options={"pattern": "wide"}),
    _Row(10, "every logit near -120", options={"pattern": "negative"}),
    _Row(10, "every logit near -120, causal", options={"pattern": "negative", "causal": True}, needs=("causal",),
         not_lazy=_CAUSAL),
    _Row(11, "four calls, memory full of NaN or 7.0", options={"repeat": 4, "poison": True}, is_alone=True),
    _Row(12, "strides beyond 2^31", (f"all={HUGE}",), is_alone=True),
    _Row(13, "L = 200", **_LONGER),
    _Row(13, "L = 200, causal", options={"causal": True}, needs=("causal",), not_lazy=_CAUSAL, **_LONGER),
    _Row(14, "D = 72", options={"head_dim": 72}, beyond=UNEVEN),
    _Row(15, "Dv > D", options={"head_dim": 16, "head_dim_v": 32}, not_lazy=_ONE_DIM, beyond=OWN_DIM),
    _Row(15, "Dv < D", options={"head_dim": 32, "head_dim_v": 16}, not_lazy=_ONE_DIM, beyond=OWN_DIM),
    _Row(16, "tiles 16 x 32", options={"block_m": 16, "block_n": 32}, needs=("block_m", "block_n"),
         **_LONG),
    _Row(17, "scale 0.4", options={"scale": 0.4}, needs=("scale",)),
    _Row(17, "softcap 1.5", options={"softcap": 1.5}, needs=("softcap",),
         not_lazy="the lazy family has no softcap"),
    _Row(17, "dropout 0.3", options={"dropout": 0.3}, needs=("keep",), not_lazy="the lazy family has no dropout"),
)  # fmt: skip

# What a target that cannot do without a parameter is given in every case.
ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "bias": {"bias": True}, "window": {"window": "45,21"}, "softcap": {"softcap": 1.5}, "alibi": {"alibi": True},
    "mask": {"mask": "random"}, "sinks": {"sinks": True}, "keep": {"dropout": 0.3},
}  # fmt: skip
# Where logits are far from 0, a cap near them: in the flat ends of a lower one gradients are what rounding leaves.
SOFTCAPS = {"large": 6.0, "wide": 60.0, "negative": 150.0, "positive": 150.0}
PACKING = frozenset({"cu_seqlens", "cu_seqlens_q"})
# What every case has of its own.
_OWN = {
    "batch", "heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "layout", "runs", "cu_seqlens_k", "inputs",
}  # fmt: skip


def battery(
    family: str, takes: Collection[str], required: Collection[str] = ()
) -> tuple[Item, ...]:
    """The cases of the battery for a target, the simplest first; those that it does not take say why.

    Args:
        takes: the canonical names of the target's parameters.
        required: of those without a default.
    """
    items, own, needed = [], frozenset(takes), frozenset(required)
    always = always_given(needed)
    for row in _ROWS:
        if row.of_lazy and family != "lazy":
            continue
        why_not = row.not_lazy if family == "lazy" else ""
        why_not = why_not or lacking(row.needs, own)
        why_not = why_not or (one_length(needed) if row.rows != row.keys else "")
        beyond = "" if row.told_by & own else row.beyond
        options: dict[str, Any] = {}
        if not why_not:
            lengths = {} if "cu_seqlens" in row.options else _lengths(row, needed)
            layout = {"layout": list(row.layout)} if row.layout else {}
            options = {"heads": row.heads, "head_dim": 16} | lengths | always
            options |= {**row.options, **layout}
        items.append(Item(row.number, row.title, options, why_not, beyond, row.is_alone))
    return tuple(items)


def always_given(required: Collection[str]) -> dict[str, Any]:
    """The options of parameters that have no default, which every case has."""
    options: dict[str, Any] = {}
    for parameter in sorted(required):
        options |= ALWAYS.get(parameter, {})
    return options


def lacking(needs: Collection[str], takes: frozenset[str]) -> str:
    """Why a target does not take what needs these parameters; "" where it does."""
    if PACKING & takes:
        takes |= {"cu_seqlens"}
    called = {"keep": "mask of what dropout keeps"}
    missing = [called.get(name, name) for name in needs if name not in takes]
    return f"takes no {' and no '.join(missing)}" if missing else ""


def one_length(required: frozenset[str]) -> str:
    """Why a target does not take lengths of queries and keys that differ; "" where it may."""
    packed = sorted(required & {"seqlens", "cu_seqlens"})
    return f"takes one {packed[0]} for rows and keys" if packed else ""


def _lengths(row: _Row, required: frozenset[str]) -> dict[str, Any]:
    """Batches and lengths in words; where the target needs a length of each, the second is half as long."""
    rows, keys = ((size, size // 2)[: row.batch] for size in (row.rows, row.keys))
    if PACKING & required:
        more = {"cu_seqlens_k": ends(keys)} if rows != keys else {}
        return {"cu_seqlens": ends(rows), **more}
    sizes = {"seqlen": row.rows} if rows == keys else {"seqlen_q": row.rows, "seqlen_k": row.keys}
    padded = {"seqlens": ",".join(map(str, rows))} if "seqlens" in required else {}
    return {"batch": row.batch, **sizes, **padded}


def ends(lengths: Collection[int]) -> str:
    """Where packed sequences of these lengths begin and end, as the command line has it."""
    return ",".join(map(str, accumulate(lengths, initial=0)))


def set_by(option: str, *, alone: bool = False) -> str:
    """What of the battery sets an option, in words; "" where nothing does, and it may be given beside.

    Args:
        alone: whether only what stands beside pairs is asked for.
    """
    if option in _OWN:
        return "every item"
    for row in _ROWS:
        if option in row.options and (row.is_alone or not alone):
            return f"item {row.number} ({row.title})"
    return ""
