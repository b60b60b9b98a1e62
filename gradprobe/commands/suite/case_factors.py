"""What a case is made of: factors, each with the levels that a target takes; and the options of one level of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...model.assignment import PLAIN
from ...model.case import Case
from .battery import ALWAYS, FEWER, OWN_DIM, PACKING, SOFTCAPS, TWO_LENGTHS, UNEVEN, ends, lacking, one_length, set_by
from .covering import Combination, Row, Space
from .matrix import Takes


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
        return Level(f"D={head_dim}", {"head_dim": head_dim}, beyond=UNEVEN if head_dim & (head_dim - 1) else "")
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
    takes: Takes
    on_gpu: bool
    always: Mapping[str, Any]
    """Options that every case has."""
    lacking: tuple[tuple[str, str], ...]
    """The levels that it does not take by its signature, each with the reason."""
    found: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    """Options that were found by trying for some levels, by the numbers of factor and level."""

    @property
    def plain(self) -> dict[str, Any]:
        """The words of the case without any option that the target can do without."""
        lengths: dict[str, Any] = {"seqlens": "72,36"} if "seqlens" in self.takes.required else {}
        lengths = _packed(72, 72) if PACKING & self.takes.required else lengths
        return {**self.always, **lengths, "layout": ["all=contiguous"]}

    @property
    def space(self) -> Space:
        """The levels as numbers, with what excludes one another."""
        excluded = map(self._pair, _excluded(two_lengths=_has_two_lengths(self.takes)))
        counts = tuple(len(factor.levels) for factor in self.each)
        return Space(counts, frozenset(pair for pair in excluded if len(pair) == 2))

    def _pair(self, names: Mapping[str, str]) -> Combination:
        """The levels with these names, by that of their factor; without those that the target does not take."""
        return frozenset(
            (at, number)
            for at, factor in enumerate(self.each)
            for number, level in enumerate(factor.levels)
            if names.get(factor.name) == level.name
        )

    def around(self, case: Case) -> Factors:
        """The same for a target that was found to take a case: that has the simplest levels, and what was found."""
        simplest = {DTYPE: case.dtype, DIM: f"D={case.head_dim}", MASK: "causal" if case.causal else ""}
        simplest |= {LENGTH: "128k" if case.seqlen_q % 128 == 0 else ""}
        own = () if case.head_dim == Case.head_dim else (_of_dim(case.head_dim),)
        each = []
        for factor in self.each:
            more = own if factor.name == DIM else ()
            levels = {level.name: level for level in (*more, *factor.levels)}
            first = simplest.get(factor.name, "")
            each.append(replace(factor, levels=tuple(sorted(levels.values(), key=lambda level: level.name != first))))
        found = found_by_trying(case)
        each = [one for one in each if one.name != HEADS or "h" in str(found.get("shapes", PLAIN))]
        return replace(self, each=tuple(each), always={**self.always, **found})

    def title(self, row: Row) -> str:
        """In what a case is not the simplest."""
        levels, sizes = self._levels(row), {LENGTH, SIDES}
        words = {factor.name: levels[factor.name].name for factor, number in zip(self.each, row, strict=True) if number}
        if sizes & words.keys():
            rows, keys = self._rows_and_keys(levels)
            words |= dict.fromkeys(sizes & words.keys(), f"L={rows}" if rows == keys else f"M={rows} N={keys}")
        return " ".join(dict.fromkeys(words.values())) or "simplest"

    def beyond(self, row: Row) -> str:
        """What a case asks for that no parameter of the target says that it takes; "" where there is no such thing."""
        levels = self._levels(row).values()
        return " and ".join(one.beyond for one in levels if one.beyond and not one.told_by & self.takes.names)

    def options(self, row: Row) -> dict[str, Any]:
        """The words of the command line for a case."""
        levels = self._levels(row)
        given = {name: word for level in levels.values() for name, word in level.options.items()}
        found = {name: word for place in enumerate(row) for name, word in self.found.get(place, {}).items()}
        options = {"head_dim": 16, **self.always, **given, **self._sizes(levels), **found, "layout": _layout(levels)}
        if "softcap" in options:
            options["softcap"] = SOFTCAPS.get(options["pattern"], options["softcap"])
        if "window" in options and min(self._rows_and_keys(levels)) < _SHORT:
            options["window"] = ",".join(_NARROW.get(word, word) for word in options["window"].split(","))
        return options

    def _levels(self, row: Row) -> dict[str, Level]:
        return {factor.name: factor.levels[number] for factor, number in zip(self.each, row, strict=True)}

    def _rows_and_keys(self, levels: Mapping[str, Level]) -> tuple[int, int]:
        length = _LENGTHS[levels[LENGTH].name][self.on_gpu]
        longer, shorter = length + _APART, max(length - _APART, length // 3)
        sides = {"M<N": (length, longer), "M>N": (length, shorter), "N<M": (longer, length), "N>M": (shorter, length)}
        sides["M=1"] = (1, length)
        return sides.get(levels[SIDES].name if SIDES in levels else _EQUAL, (length, length))

    def _sizes(self, levels: Mapping[str, Level]) -> dict[str, Any]:
        """Batches, heads and lengths; of several sequences the second is half as long."""
        mask, shapes = levels[MASK].name if MASK in levels else "", str(self.always.get("shapes", PLAIN))
        rows, keys = self._rows_and_keys(levels)
        heads, kv_heads = _HEADS[levels[HEADS].name if HEADS in levels else _EACH][self.on_gpu]
        sizes: dict[str, Any] = {"heads": heads if "h" in shapes else 1}
        sizes |= {"kv_heads": kv_heads} if kv_heads != heads and "h" in shapes else {}
        if mask == _PACKED or PACKING & self.takes.required:
            return sizes | _packed(rows, keys)
        is_padded = mask == _PADDED or "seqlens" in self.takes.required
        batch = 1 if "b" not in shapes else 2 if self.on_gpu or is_padded or max(rows, keys) <= _SHORT else 1
        sizes |= {"batch": batch, **({"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys})}
        return sizes | ({"seqlens": ",".join(map(str, (rows, rows // 2)[:batch]))} if is_padded else {})


def _packed(rows: int, keys: int) -> dict[str, Any]:
    packed = {"cu_seqlens": ends((rows, rows // 2))}
    return packed if rows == keys else packed | {"cu_seqlens_k": ends((keys, keys // 2))}


def _layout(levels: Mapping[str, Level]) -> list[str]:
    """How the tensors lie; dO is named only where it would lie otherwise."""
    qkv, do = (list(levels[name].options["layout"]) for name in (QKV, DO))
    if qkv[0].startswith("all="):
        return qkv + do
    return ["all=contiguous", *(word for word in qkv + do if not word.endswith("=contiguous"))]


def _has_two_lengths(takes: Takes) -> bool:
    """Whether packed sequences may have other lengths of keys."""
    return "cu_seqlens" not in takes.names


def _excluded(*, two_lengths: bool) -> Iterator[dict[str, str]]:
    """Levels that no case has together, by the names of their factors."""
    for mask in (_PADDED, *(() if two_lengths else (_PACKED,))):
        yield from ({MASK: mask, SIDES: side} for side in _UNEQUAL)
    # Nothing is counted from a corner, or both corners are one.
    masks = next(factor for factor in _FACTORS if factor.name == MASK).levels
    flat = [level.name for level in masks if "causal" not in level.options and "window" not in level.options]
    yield from ({OPTION: _TOP_LEFT, MASK: mask} for mask in flat)
    yield {OPTION: _TOP_LEFT, SIDES: _EQUAL}


# What of a case says how a target takes its tensors, and is found by trying where nobody gave it.
_HOW = (
    "shapes", "implied", "as_cuda", "window_as", "lse_as", "mask_as", "bias_axes", "bias_rank", "mask_axes",
    "mask_rank",
)  # fmt: skip


def found_by_trying(case: Case) -> dict[str, Any]:
    """The options that were found for a case whose words had none of them."""
    plain = Case(case.family)
    differ = {name: getattr(case, name) for name in _HOW if getattr(case, name) != getattr(plain, name)}
    return {name: ",".join(word) if isinstance(word, tuple) else word for name, word in differ.items()}


def factors_of(takes: Takes, given: Mapping[str, Any], *, on_gpu: bool) -> Factors:
    """The factors of the cases for a target.

    Args:
        given: options that are the same in all of them.
        on_gpu: whether they run on a GPU, where lengths are those of larger tiles.
    """
    always = {name: word for one in sorted(takes.required) for name, word in ALWAYS.get(one, {}).items()}
    each, lacks = list[Factor](), list[tuple[str, str]]()
    for factor in _FACTORS:
        if any(name in given for level in factor.levels for name in level.options):
            continue
        known = [level for level in factor.levels if level.family in ("", takes.family)]
        left = [level for level in known if not _is_always(level, takes, always)]
        why = {level.name: _why_not(level, takes) for level in left}
        lacks += [(name, reason) for name, reason in why.items() if reason]
        levels = tuple(level for level in left if not why[level.name])
        each += [Factor(factor.name, levels)] if len(levels) > 1 or factor.name in (DO, QKV) else []
    return Factors(tuple(each), takes, on_gpu, always, tuple(lacks))


def _is_always(level: Level, takes: Takes, always: Mapping[str, Any]) -> bool:
    """Whether a level asks for what every case of the target has, or what another level asks for too."""
    packs, pads = bool(PACKING & takes.required), "seqlens" in takes.required
    told = {_PACKED: packs, _PADDED: packs or pads, "mask=padding": "seqlens" in takes.names}
    if level.name in told:
        return told[level.name]
    return bool(level.options) and level.options.items() <= always.items()


def _why_not(level: Level, takes: Takes) -> str:
    """Why a target does not take a level, by its signature; "" where it does."""
    if level.name in _UNEQUAL and (refusal := one_length(takes.required)):
        return refusal
    return lacking(level.needs, takes.names)


def set_by_factors(option: str) -> str:
    """What of the combinations, and of what stands beside them, sets an option; "" where it may be given beside.

    A dtype that is given is that of all.
    """
    if option == "dtype":
        return ""
    by = next((factor.name for factor in _FACTORS for level in factor.levels if option in level.options), "")
    return f"the property {by}" if by else set_by(option, alone=True)
