"""The properties of cases, each with the levels that a target takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from operator import attrgetter, itemgetter
from typing import Any

from ...model.assignment import PLAIN
from ...model.case import Case
from ...model.memory_finding import HUGE
from .plan import TargetSignature


@dataclass(frozen=True)
class Level:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Words of the command line; `layout` stands beside that of other levels."""
    needs: tuple[str, ...] = ()
    family: str = ""
    """That has it alone; "" of both."""
    beyond: str = ""
    """What it asks for that no parameter tells, but for those of `_OF_LENGTHS`."""


Row = tuple[str, ...]
"""A level of each property."""
_SOFTMAX, _LAZY = "softmax", "lazy"
_FEWER, _UNEVEN = "fewer key heads than heads", "a head dim that is no power of two"
_OWN_DIM, _DIFFER = "a head dim of v of its own", "lengths of queries and keys that differ"
_OF_LENGTHS = frozenset({"align", "cu_seqlens_k", "max_seqlen_k"})


def _laid(title: str, name: str) -> Level:
    tensors = "qkv" if title == "qkv" else [title]
    return Level(f"{title}={name}", {"layout": [f"{tensor}={name}" for tensor in tensors]})


def _of_dim(head_dim: int, head_dim_v: int | None = None) -> Level:
    name, options = f"D={head_dim}", {"head_dim": head_dim}
    if head_dim_v is None:
        return Level(name, options, beyond=_UNEVEN if head_dim & (head_dim - 1) else "")
    options["head_dim_v"] = head_dim_v
    return Level(f"{name} Dv={head_dim_v}", options, family=_SOFTMAX, beyond=_OWN_DIM)


# The length is that of M; of one row, that of N.
_EQUAL, *_UNEQUAL = "M=N", "M<N", "M>N", "M=1"
_PADDED, _PACKED, _TOP_LEFT = "padded", "packed", "top-left"
_GROUPED, _MULTI_QUERY = "grouped", "multi-query"
# Here, where time goes by tiles, and on a GPU.
_LENGTHS: Mapping[str, tuple[int, int]] = {
    "32k": (96, 96), "short": (13, 13), "64k": (64, 192), "128k": (128, 384), "128k-1": (127, 383),
    "128k+1": (129, 385),
}  # fmt: skip
# How far M and N are apart: no multiple of a tile, and more than one.
_APART = 35
# Keys to the left and right of a row, fewer than the shortest case has.
_WINDOW = "9,5"
_MASKS = (
    Level("no-mask"),
    Level("causal", {"causal": True}, ("causal",), _SOFTMAX),
    Level("window", {"window": _WINDOW}, ("window",), _SOFTMAX),
    Level("window,causal", {"window": "9,-1", "causal": True}, ("window", "causal"), _SOFTMAX),
    Level("mask", {"mask": "random"}, ("mask",), _SOFTMAX),
    Level("dead-rows", {"mask": "dead-rows"}, ("mask",), _SOFTMAX),
    Level(_PADDED, {}, ("seqlens",)),
    Level(_PACKED, {}, ("cu_seqlens",), _SOFTMAX),
)  # fmt: skip
# By property; the simplest level first.
FACTORS: tuple[tuple[Level, ...], ...] = (
    tuple(Level(name, {"dtype": name}) for name in ("float32", "float16", "bfloat16")),
    _MASKS,
    tuple(map(Level, _LENGTHS)),
    (Level(_EQUAL), *(Level(name, {}, (), _SOFTMAX, _DIFFER) for name in _UNEQUAL)),
    tuple(Level(name, {"pattern": name}) for name in ("normal", "small", "large", "negative", "positive")),
    tuple(map(partial(_laid, "do"), ("contiguous", "blhd", "expanded", "distinct", "distinct-unit"))),
    (
        _laid("qkv", "contiguous"), _laid("qkv", "blhd"), _laid("qkv", "packed"), _laid("all", "distinct"),
        _laid("all", "distinct-unit"),
    ),
    (Level("ungrouped"), *(Level(name, {}, (), _SOFTMAX, _FEWER) for name in (_GROUPED, _MULTI_QUERY))),
    (_of_dim(16), _of_dim(64), _of_dim(128), _of_dim(72), _of_dim(16, 32), _of_dim(32, 16)),
    (
        Level("no-option"),
        Level("no-bias", {"bias": False}, ("bias",), _LAZY),
        Level("bias-window=45", {"bias_window": 45}, ("bias",), _LAZY),
        Level("bias", {"bias": True}, ("bias",), _SOFTMAX),
        Level("softcap", {"softcap": 1.5}, ("softcap",), _SOFTMAX),
        Level("alibi", {"alibi": True}, ("alibi",), _SOFTMAX),
        Level("sinks", {"sinks": True}, ("sinks",), _SOFTMAX),
        Level("dropout", {"dropout": 0.3}, ("keep",), _SOFTMAX),
        Level("scale=0.4", {"scale": 0.4}, ("scale",)),
        Level(_TOP_LEFT, {"align": "top-left"}, ("align",), _SOFTMAX),
        Level("tiles=16x32", {"block_m": 16, "block_n": 32}, ("block_m", "block_n")),
    ),
)  # fmt: skip
# Cases that show what no pair of levels does.
SPECIAL = (
    Level("6 heads, a tau each", {"heads": 6, "tau": "-0.5,0.5,-3,1,-1.5,2"}, family=_LAZY),
    Level(
        "an empty sequence, padded", {"batch": 2, "seqlen": 37, "seqlens": "20,0"}, ("seqlens",)
    ),
    Level("an empty sequence, packed", {"cu_seqlens": "0,20,20,57"}, ("cu_seqlens",), _SOFTMAX),
    Level("four calls, memory full of NaN or 7.0", {"repeat": 4, "poison": True}),
    Level("strides beyond 2^31", {"layout": [f"all={HUGE}"]}),
)
# What a target that cannot do without a parameter is given in every case.
_ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "bias": {"bias": True}, "window": {"window": _WINDOW}, "softcap": {"softcap": 1.5}, "alibi": {"alibi": True},
    "mask": {"mask": "random"}, "sinks": {"sinks": True}, "keep": {"dropout": 0.3},
}  # fmt: skip
# Where logits are far from 0, a cap near them: in the flat ends of a lower one gradients are what rounding leaves.
SOFTCAPS = {"large": 6.0, "wide": 60.0, "negative": 150.0, "positive": 150.0}
PACKING = frozenset({"cu_seqlens", "cu_seqlens_q"})
# A length up to which a second batch takes little time in the interpreter.
_SHORT = 64
# The options of sequences: of a case with its own, none of the simplest stays.
_OF_SEQUENCES = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
# What of a case says how a target takes its tensors, and is found by trying where nobody gave it.
HOW = (
    "shapes", "implied", "as_cuda", "window_as", "lse_as", "mask_as", "bias_axes", "bias_rank", "mask_axes",
    "mask_rank",
)  # fmt: skip


@dataclass(frozen=True)
class Factors:
    each: tuple[tuple[Level, ...], ...]
    special: tuple[Level, ...]
    takes: TargetSignature
    on_gpu: bool
    always: Mapping[str, Any]
    lacking: tuple[tuple[str, str], ...]

    @property
    def plain(self) -> dict[str, Any]:
        """Words of the case without any option that the target can do without."""
        required, words = self.takes.required, {**self.always, "layout": ["all=contiguous"]}
        if PACKING & required:
            return words | _packed(72, 72)
        return words | ({"seqlens": "72,36"} if "seqlens" in required else {})

    @property
    def names(self) -> list[Row]:
        return [tuple(map(attrgetter("name"), levels)) for levels in self.each]

    @property
    def simplest(self) -> Row:
        return tuple(map(itemgetter(0), self.names))

    @property
    def excluded(self) -> set[frozenset[str]]:
        one_length = {_PADDED} if "cu_seqlens" not in self.takes.names else {_PADDED, _PACKED}
        # Where nothing is counted from a corner.
        masks = [mask.name for mask in _MASKS if not {"causal", "window"} & mask.options.keys()]
        pairs = [*product(one_length, _UNEQUAL), *product([_TOP_LEFT], [_EQUAL, *masks])]
        return set(map(frozenset, pairs))

    def around(self, case: Case) -> Factors:
        """For a target that takes a case, whose levels are the simplest."""
        plain, found, each = Case(case.family), dict[str, Any](), []
        for name in HOW:
            if (value := getattr(case, name)) != getattr(plain, name):
                found[name] = ",".join(value) if isinstance(value, tuple) else value
        own = "" if case.head_dim == Case.head_dim else f"D={case.head_dim}"
        first = {case.dtype, own, "causal" if case.causal else ""}
        first.add("128k" if case.seqlen_q % 128 == 0 else "")
        for levels in self.each:
            names = ["", *(level.name for level in levels)]
            more = (_of_dim(case.head_dim),) if "D=16" in names and own not in names else ()
            if _GROUPED not in names or "h" in str(found.get("shapes", PLAIN)):
                known = sorted((*more, *levels), key=lambda level: level.name not in first)
                each.append(tuple(known))
        return replace(self, each=tuple(each), always={**self.always, **found})

    def title(self, row: Row) -> str:
        rows, keys = self._rows_and_keys(row)
        told, words = f"L={rows}" if rows == keys else f"M={rows} N={keys}", list[str]()
        for name, simplest in zip(row, self.simplest, strict=True):
            if name != simplest:
                words.append(told if name in _LENGTHS or name in _UNEQUAL else name)
        return " ".join(dict.fromkeys(words)) or "simplest"

    def beyond(self, row: Row) -> str:
        """What a case asks for that no parameter of the target tells, or ""."""
        known = {_DIFFER, ""} if self.takes.names & _OF_LENGTHS else {""}
        beyond = [level.beyond for level in self._levels(row) if level.beyond not in known]
        return " and ".join(beyond)

    def options(self, row: Row) -> dict[str, Any]:
        options: dict[str, Any] = {"head_dim": 16, **self.always}
        layout = list[str]()
        for level in self._levels(row):
            layout += level.options.get("layout", ())
            options |= level.options
        options |= self._sizes(row)
        options["layout"] = _fewest(layout)
        if "softcap" in options:
            options["softcap"] = SOFTCAPS.get(options.get("pattern", ""), options["softcap"])
        return options

    def options_of(self, level: Level) -> dict[str, Any]:
        options = self.options(self.simplest)
        if {"seqlens", "cu_seqlens"} & level.options.keys():
            for name in ("batch", *_OF_SEQUENCES):
                options.pop(name, None)
        return {**options, **level.options}

    def _levels(self, row: Row) -> list[Level]:
        known = {level.name: level for level in chain(*self.each)}
        return [known[name] for name in row]

    def _rows_and_keys(self, row: Row) -> tuple[int, int]:
        of_level = [_LENGTHS[name][self.on_gpu] for name in row if name in _LENGTHS]
        (length,) = of_level or [Case.seqlen_q]
        shorter = max(length - _APART, length // 3, 1)
        sides = {"M<N": (length, length + _APART), "M>N": (length, shorter), "M=1": (1, length)}
        return next((sides[name] for name in row if name in sides), (length, length))

    def _sizes(self, row: Row) -> dict[str, Any]:
        rows, keys = self._rows_and_keys(row)
        shapes, required = str(self.always.get("shapes", PLAIN)), self.takes.required
        heads = 3 if self.on_gpu else 2
        sizes: dict[str, Any] = {"heads": heads if "h" in shapes else 1}
        if _GROUPED in row:
            sizes = {"heads": 2 * heads, "kv_heads": heads}
        elif _MULTI_QUERY in row:
            sizes["kv_heads"] = 1
        if _PACKED in row or PACKING & required:
            return sizes | _packed(rows, keys)
        is_padded = _PADDED in row or "seqlens" in required
        has_two = "b" in shapes and (self.on_gpu or is_padded or max(rows, keys) <= _SHORT)
        sizes |= {"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}
        lengths = {"seqlens": f"{rows},{rows // 2}" if has_two else str(rows)}
        return sizes | {"batch": 2 if has_two else 1} | (lengths if is_padded else {})


def _packed(rows: int, keys: int) -> dict[str, Any]:
    packed = {"cu_seqlens": f"0,{rows},{rows + rows // 2}"}
    return packed if rows == keys else packed | {"cu_seqlens_k": f"0,{keys},{keys + keys // 2}"}


def _fewest(layout: list[str]) -> list[str]:
    words = sorted(layout, key=lambda word: word.startswith("do="))
    moved = [word for word in words if not word.endswith("=contiguous")]
    return words if words and words[0].startswith("all=") else ["all=contiguous", *moved]


def factors_of(
    takes: TargetSignature, given: Collection[str] = (), *, on_gpu: bool = False
) -> Factors:
    """`given` are the options that are the same in all of the cases."""
    always, lacks = dict[str, Any](), list[tuple[str, str]]()
    for parameter in sorted(takes.required):
        always |= _ALWAYS.get(parameter, {})

    def taken(levels: Iterable[Level]) -> tuple[Level, ...]:
        found = []
        for level in levels:
            is_other = level.family not in ("", takes.family)
            if is_other or level.options.keys() & given or _is_always(level, takes, always):
                continue
            if why_not := _why_not_taken(level, takes):
                lacks.append((level.name, why_not))
            else:
                found.append(level)
        return tuple(found)

    each = tuple(levels for levels in map(taken, FACTORS) if len(levels) > 1)
    return Factors(each, taken(SPECIAL), takes, on_gpu, always, tuple(lacks))


def _why_not_taken(level: Level, takes: TargetSignature) -> str:
    packed = sorted(takes.required & {"seqlens", "cu_seqlens"})
    if packed and level.name in _UNEQUAL:
        return f"takes one {packed[0]} for rows and keys"
    known = takes.names | ({"cu_seqlens"} if PACKING & takes.names else set())
    missing = [name for name in level.needs if name not in known]
    return f"takes no {' and no '.join(missing)}" if missing else ""


def _is_always(level: Level, takes: TargetSignature, always: Mapping[str, Any]) -> bool:
    packs, pads = bool(PACKING & takes.required), "seqlens" in takes.required
    if level.name in (_PACKED, _PADDED):
        return packs or (pads and level.name == _PADDED)
    return bool(level.options) and level.options.items() <= always.items()
