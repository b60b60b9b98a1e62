"""What a case is made of: factors, each with the levels that a target takes; and the options of one level of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...model.assignment import PLAIN
from ...model.case import Case
from .battery import (
    FEWER,
    OWN_DIM,
    PACKING,
    SOFTCAPS,
    TWO_LENGTHS,
    UNEVEN,
    always_given,
    ends,
    lacking,
    one_length,
    set_by,
)
from .covering import Level as Place
from .covering import Row, Space
from .takes import TargetSignature


@dataclass(frozen=True)
class Level:
    """One value of a factor."""

    name: str
    """As titles have it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Words of the command line, as `CheckRequest` holds them; `layout` stands beside that of other levels."""
    needs: tuple[str, ...] = ()
    """The parameters without which a target does not take it."""
    family: str = ""
    """The family that alone has it; "" where both do."""
    beyond: str = ""
    """What it asks for that no signature need tell."""
    told_by: frozenset[str] = frozenset()
    """The parameters that tell it nevertheless."""


@dataclass(frozen=True)
class Factor:
    """One property of a case."""

    name: str
    levels: tuple[Level, ...]
    """The simplest first."""


DTYPE, MASK, LENGTH, SIDES, RANGE, DO, QKV, HEADS, DIM, OPTION = (
    "dtype", "mask", "length", "M and N", "logits", "dO", "q k v", "key heads", "head dim", "option"
)  # fmt: skip
_SOFTMAX, _LAZY = "softmax", "lazy"


def _laid(name: str, *tensors: str) -> Level:
    layout = [f"{tensor}={name}" for tensor in tensors]
    return Level(" ".join(layout) if len(tensors) == 1 else f"qkv={name}", {"layout": layout})


def _of_dim(head_dim: int, head_dim_v: int | None = None) -> Level:
    if head_dim_v is None:
        return Level(
            f"D={head_dim}",
            {"head_dim": head_dim},
            beyond=UNEVEN if head_dim & (head_dim - 1) else "",
        )
    both = {"head_dim": head_dim, "head_dim_v": head_dim_v}
    return Level(f"D={head_dim} Dv={head_dim_v}", both, family=_SOFTMAX, beyond=OWN_DIM)


# The length is that of the side that is named first; of the last, where one row sees keys, that of N.
_EQUAL, *_UNEQUAL = "M=N", "M<N", "M>N", "N<M", "N>M", "M=1"
_PADDED, _PACKED, _TOP_LEFT, _TILES = "padded", "packed", "top-left", "tiles=16x32"
_EACH, _GROUPED, _MULTI_QUERY = "ungrouped", "grouped", "multi-query"
# A multiple of 32, of 64 and of 128 alone, one less and one more than one of all three, and less than a tile has: here,
# and on a GPU. In the interpreter time goes by tiles.
_LENGTHS: Mapping[str, tuple[int, int]] = {
    "32k": (96, 96), "short": (13, 13), "64k": (64, 192),
    "128k": (128, 384), "128k-1": (127, 383), "128k+1": (129, 385),
}  # fmt: skip
# How far M and N are apart: no multiple of a tile, and more than one.
_APART = 35
_FACTORS = (
    Factor(DTYPE, tuple(Level(name, {"dtype": name}) for name in ("float32", "float16", "bfloat16"))),
    Factor(MASK, (
        Level("no-mask"),
        Level("causal", {"causal": True}, ("causal",), _SOFTMAX),
        Level("window", {"window": "45,21"}, ("window",), _SOFTMAX),
        Level("window,causal", {"window": "45,-1", "causal": True}, ("window", "causal"), _SOFTMAX),
        Level("mask", {"mask": "random"}, ("mask",), _SOFTMAX),
        Level("dead-rows", {"mask": "dead-rows"}, ("mask",), _SOFTMAX),
        Level(_PADDED, {}, ("seqlens",)),
        Level("mask=padding", {"mask": "padding"}, ("mask",), _SOFTMAX),
        Level(_PACKED, {}, ("cu_seqlens",), _SOFTMAX),
    )),
    Factor(LENGTH, tuple(map(Level, _LENGTHS))),
    Factor(SIDES, (Level(_EQUAL), *(Level(name, family=_SOFTMAX, **TWO_LENGTHS) for name in _UNEQUAL))),
    Factor(RANGE, tuple(
        Level(name, {"pattern": name}) for name in ("normal", "small", "large", "negative", "positive")
    )),
    Factor(DO, tuple(_laid(name, "do") for name in ("contiguous", "blhd", "expanded", "distinct", "distinct-unit"))),
    Factor(QKV, (
        *(_laid(name, "q", "k", "v") for name in ("contiguous", "blhd", "packed")),
        _laid("distinct", "all"), _laid("distinct-unit", "all"),
    )),
    Factor(HEADS, (
        Level(_EACH),
        *(Level(name, family=_SOFTMAX, beyond=FEWER) for name in (_GROUPED, _MULTI_QUERY)),
    )),
    Factor(DIM, (_of_dim(16), _of_dim(64), _of_dim(128), _of_dim(72), _of_dim(16, 32), _of_dim(32, 16))),
    Factor(OPTION, (
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
        Level(_TILES, {"block_m": 16, "block_n": 32}, ("block_m", "block_n")),
    )),
)  # fmt: skip
# Heads and key heads: here, and on a GPU.
_HEADS = {_EACH: ((2, 2), (3, 3)), _GROUPED: ((4, 2), (6, 2)), _MULTI_QUERY: ((2, 1), (3, 1))}
# A length up to which a second batch takes little time in the interpreter, and below which a window is a small one.
_SHORT = 64
_NARROW = {"45": "5", "21": "3"}


@dataclass(frozen=True)
class Factors:
    """The factors of the cases of one target, and how a row of their levels becomes a case."""

    each: tuple[Factor, ...]
    """Those of which it takes two levels or more."""
    takes: TargetSignature
    on_gpu: bool
    always: Mapping[str, Any]
    """Options that every case has."""
    lacking: tuple[tuple[str, str], ...]
    """The levels that it does not take by its signature, each with the reason."""
    found: Mapping[Place, Mapping[str, Any]] = field(default_factory=dict)
    """Options that were found by trying for some levels, by the numbers of factor and level."""

    @property
    def plain(self) -> dict[str, Any]:
        """The words of the case without any option that the target can do without."""
        lengths: dict[str, Any] = {"seqlens": "72,36"} if "seqlens" in self.takes.required else {}
        if PACKING & self.takes.required:
            lengths = _packed(72, 72)
        return {**self.always, **lengths, "layout": ["all=contiguous"]}

    @property
    def space(self) -> Space:
        """The levels as numbers, with what excludes one another."""
        places = {}
        for at, factor in enumerate(self.each):
            for number, level in enumerate(factor.levels):
                places[factor.name, level.name] = (at, number)
        excluded = set()
        for pair in _excluded(two_lengths="cu_seqlens" not in self.takes.names):
            if places.keys() >= pair:
                excluded.add(frozenset(places[level] for level in pair))
        return Space(tuple(len(factor.levels) for factor in self.each), frozenset(excluded))

    def around(self, case: Case) -> Factors:
        """The same for a target that was found to take a case: that has the simplest levels, and what was found."""
        found, each = found_by_trying(case), []
        simplest = {
            DTYPE: case.dtype,
            DIM: f"D={case.head_dim}",
            MASK: "causal" if case.causal else "",
        }
        simplest[LENGTH] = "128k" if case.seqlen_q % 128 == 0 else ""
        for factor in self.each:
            if factor.name == HEADS and "h" not in str(found.get("shapes", PLAIN)):
                continue
            levels = {level.name: level for level in factor.levels}
            if factor.name == DIM and case.head_dim != Case.head_dim:
                levels.setdefault(simplest[DIM], _of_dim(case.head_dim))
            first = levels.pop(simplest.get(factor.name, ""), None)
            each.append(replace(factor, levels=(*([first] if first else []), *levels.values())))
        return replace(self, each=tuple(each), always={**self.always, **found})

    def title(self, row: Row) -> str:
        """In what a case is not the simplest."""
        levels, words = self._levels(row), {}
        for factor, number in zip(self.each, row, strict=True):
            if number:
                words[factor.name] = factor.levels[number].name
        for name in {LENGTH, SIDES} & words.keys():
            rows, keys = self._rows_and_keys(levels)
            words[name] = f"L={rows}" if rows == keys else f"M={rows} N={keys}"
        return " ".join(dict.fromkeys(words.values())) or "simplest"

    def beyond(self, row: Row) -> str:
        """What a case asks for that no parameter of the target says that it takes; "" where there is no such thing."""
        levels, names = self._levels(row).values(), self.takes.names
        return " and ".join(
            filter(None, (level.beyond for level in levels if not level.told_by & names))
        )

    def options(self, row: Row) -> dict[str, Any]:
        """The words of the command line for a case."""
        levels = self._levels(row)
        options: dict[str, Any] = {"head_dim": 16, **self.always}
        for level in levels.values():
            options |= level.options
        options |= self._sizes(levels)
        for place in enumerate(row):
            options |= self.found.get(place, {})
        options["layout"] = _layout(levels)
        if "softcap" in options:
            options["softcap"] = SOFTCAPS.get(options["pattern"], options["softcap"])
        if "window" in options and min(self._rows_and_keys(levels)) < _SHORT:
            words = options["window"].split(",")
            options["window"] = ",".join(_NARROW.get(word, word) for word in words)
        return options

    def _levels(self, row: Row) -> dict[str, Level]:
        pairs = zip(self.each, row, strict=True)
        return {factor.name: factor.levels[number] for factor, number in pairs}

    def _rows_and_keys(self, levels: Mapping[str, Level]) -> tuple[int, int]:
        length = _LENGTHS[levels[LENGTH].name][self.on_gpu]
        longer, shorter = length + _APART, max(length - _APART, length // 3)
        sides = {
            _EQUAL: (length, length), "M<N": (length, longer), "M>N": (length, shorter), "N<M": (longer, length),
            "N>M": (shorter, length), "M=1": (1, length),
        }  # fmt: skip
        return sides[levels[SIDES].name if SIDES in levels else _EQUAL]

    def _sizes(self, levels: Mapping[str, Level]) -> dict[str, Any]:
        """Batches, heads and lengths; of several sequences the second is half as long."""
        mask = levels[MASK].name if MASK in levels else ""
        shapes, sizes = str(self.always.get("shapes", PLAIN)), dict[str, Any](heads=1)
        rows, keys = self._rows_and_keys(levels)
        if "h" in shapes:
            group = levels[HEADS].name if HEADS in levels else _EACH
            heads, kv_heads = _HEADS[group][self.on_gpu]
            sizes = {"heads": heads} | ({} if heads == kv_heads else {"kv_heads": kv_heads})
        if mask == _PACKED or PACKING & self.takes.required:
            return sizes | _packed(rows, keys)
        is_padded = mask == _PADDED or "seqlens" in self.takes.required
        has_two = "b" in shapes and (self.on_gpu or is_padded or max(rows, keys) <= _SHORT)
        sizes["batch"] = 2 if has_two else 1
        sizes |= {"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}
        if is_padded:
            sizes["seqlens"] = f"{rows},{rows // 2}" if has_two else str(rows)
        return sizes


def _packed(rows: int, keys: int) -> dict[str, Any]:
    packed = {"cu_seqlens": ends((rows, rows // 2))}
    return packed if rows == keys else packed | {"cu_seqlens_k": ends((keys, keys // 2))}


def _layout(levels: Mapping[str, Level]) -> list[str]:
    """How the tensors lie; dO is named only where it would lie otherwise."""
    qkv, do = (list(levels[name].options["layout"]) for name in (QKV, DO))
    if qkv[0].startswith("all="):
        return qkv + do
    return ["all=contiguous", *(word for word in qkv + do if not word.endswith("=contiguous"))]


def _excluded(*, two_lengths: bool) -> Iterator[set[tuple[str, str]]]:
    """Levels that no case has together, by the names of their factors.

    Args:
        two_lengths: whether packed sequences may have other lengths of keys.
    """
    for mask in (_PADDED, *(() if two_lengths else (_PACKED,))):
        for side in _UNEQUAL:
            yield {(MASK, mask), (SIDES, side)}
    # Nothing is counted from a corner, or both corners are one.
    yield {(OPTION, _TOP_LEFT), (SIDES, _EQUAL)}
    for factor in _FACTORS:
        for level in factor.levels if factor.name == MASK else ():
            if "causal" not in level.options and "window" not in level.options:
                yield {(OPTION, _TOP_LEFT), (MASK, level.name)}


# What of a case says how a target takes its tensors, and is found by trying where nobody gave it.
_HOW = (
    "shapes", "implied", "as_cuda", "window_as", "lse_as", "mask_as", "bias_axes", "bias_rank", "mask_axes",
    "mask_rank",
)  # fmt: skip


def found_by_trying(case: Case) -> dict[str, Any]:
    """The options that were found for a case whose words had none of them."""
    plain, found = Case(case.family), {}
    for name in _HOW:
        value = getattr(case, name)
        if value != getattr(plain, name):
            found[name] = ",".join(value) if isinstance(value, tuple) else value
    return found


def factors_of(takes: TargetSignature, given: Mapping[str, Any], *, on_gpu: bool) -> Factors:
    """The factors of the cases for a target.

    Args:
        given: options that are the same in all of them.
        on_gpu: whether they run on a GPU, where lengths are those of larger tiles.
    """
    always, each, lacks = always_given(takes.required), list[Factor](), list[tuple[str, str]]()
    for factor in _FACTORS:
        if any(given.keys() & level.options.keys() for level in factor.levels):
            continue
        levels = []
        for level in factor.levels:
            if level.family not in ("", takes.family) or _is_always(level, takes, always):
                continue
            why_not = one_length(takes.required) if level.name in _UNEQUAL else ""
            why_not = why_not or lacking(level.needs, takes.names)
            if why_not:
                lacks.append((level.name, why_not))
            else:
                levels.append(level)
        if len(levels) > 1 or factor.name in (DO, QKV):
            each.append(Factor(factor.name, tuple(levels)))
    return Factors(tuple(each), takes, on_gpu, always, tuple(lacks))


def _is_always(level: Level, takes: TargetSignature, always: Mapping[str, Any]) -> bool:
    """Whether a level asks for what every case of the target has, or what another level asks for too."""
    packs, pads = bool(PACKING & takes.required), "seqlens" in takes.required
    told = {_PACKED: packs, _PADDED: packs or pads, "mask=padding": "seqlens" in takes.names}
    if level.name in told:
        return told[level.name]
    return bool(level.options) and level.options.items() <= always.items()


def set_by_factors(option: str) -> str:
    """What of the pairs, and of what stands beside them, sets an option; "" where it may be given beside.

    A dtype that is given is that of all.
    """
    if option == "dtype":
        return ""
    for factor in _FACTORS:
        if any(option in level.options for level in factor.levels):
            return f"the property {factor.name}"
    return set_by(option, alone=True)
