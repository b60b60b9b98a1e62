"""Cases: the properties that they are made of, each with the levels that a target takes, and the options of one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from ...model.assignment import PLAIN
from ...model.case import Case
from ...model.memory_finding import HUGE
from .covering import Place, Row, Space
from .takes import TargetSignature


@dataclass(frozen=True)
class Level:
    """One value of a property."""

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
_FEWER, _UNEVEN = "fewer key heads than heads", "a head dim that is no power of two"
_OWN_DIM = "a head dim of v that is not that of q and k"
_DIFFER = "lengths of queries and keys that differ"
_OF_LENGTHS = frozenset({"align", "cu_seqlens_k", "max_seqlen_k"})


def _laid(name: str, *tensors: str) -> Level:
    layout = [f"{tensor}={name}" for tensor in tensors]
    return Level(" ".join(layout) if len(tensors) == 1 else f"qkv={name}", {"layout": layout})


def _of_dim(head_dim: int) -> Level:
    beyond = _UNEVEN if head_dim & (head_dim - 1) else ""
    return Level(f"D={head_dim}", {"head_dim": head_dim}, beyond=beyond)


def _of_dims(head_dim: int, head_dim_v: int) -> Level:
    both = {"head_dim": head_dim, "head_dim_v": head_dim_v}
    return Level(f"D={head_dim} Dv={head_dim_v}", both, family=_SOFTMAX, beyond=_OWN_DIM)


# The length is that of the side that is named first; of the last, where one row sees keys, that of N.
_EQUAL, *_UNEQUAL = "M=N", "M<N", "M>N", "N<M", "N>M", "M=1"
_PADDED, _PACKED, _TOP_LEFT = "padded", "packed", "top-left"
_EACH, _GROUPED, _MULTI_QUERY = "ungrouped", "grouped", "multi-query"
# A multiple of 32, of 64 and of 128 alone, one less and one more than one of all three, and less than a tile has: here,
# and on a GPU. In the interpreter time goes by tiles.
_LENGTHS: Mapping[str, tuple[int, int]] = {
    "32k": (96, 96), "short": (13, 13), "64k": (64, 192),
    "128k": (128, 384), "128k-1": (127, 383), "128k+1": (129, 385),
}  # fmt: skip
# How far M and N are apart: no multiple of a tile, and more than one.
_APART = 35
FACTORS = (
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
    Factor(SIDES, (
        Level(_EQUAL),
        *(Level(name, {}, (), _SOFTMAX, _DIFFER, _OF_LENGTHS) for name in _UNEQUAL),
    )),
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
        *(Level(name, family=_SOFTMAX, beyond=_FEWER) for name in (_GROUPED, _MULTI_QUERY)),
    )),
    Factor(DIM, (_of_dim(16), _of_dim(64), _of_dim(128), _of_dim(72), _of_dims(16, 32), _of_dims(32, 16))),
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
        Level("tiles=16x32", {"block_m": 16, "block_n": 32}, ("block_m", "block_n")),
    )),
)  # fmt: skip
# Cases that show what no pair of properties does.
SPECIAL = (
    Level("6 heads, a tau each", {"heads": 6, "tau": "-0.5,0.5,-3,1,-1.5,2"}, family=_LAZY),
    Level(
        "an empty sequence, padded", {"batch": 2, "seqlen": 37, "seqlens": "20,0"}, ("seqlens",)
    ),
    Level("an empty sequence, packed", {"cu_seqlens": "0,20,20,57"}, ("cu_seqlens",), _SOFTMAX),
    Level("four calls, memory full of NaN or 7.0", {"repeat": 4, "poison": True}),
    Level("strides beyond 2^31", {"layout": [f"all={HUGE}"]}),
)
# What a quick battery has besides: a case, and pairs that are soonest mixed up.
WIDE = Level("logits to 100", {"pattern": "wide"})
FIRST_PAIRS = (
    {SIDES: "M<N", MASK: "causal"}, {SIDES: "M>N", MASK: "causal"}, {HEADS: _GROUPED, OPTION: "bias"},
    {RANGE: "negative", MASK: "causal"}, {LENGTH: "128k+1", MASK: "causal"}, {LENGTH: "128k+1", MASK: "window"},
)  # fmt: skip
# What a target that cannot do without a parameter is given in every case.
_ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "bias": {"bias": True}, "window": {"window": "45,21"}, "softcap": {"softcap": 1.5}, "alibi": {"alibi": True},
    "mask": {"mask": "random"}, "sinks": {"sinks": True}, "keep": {"dropout": 0.3},
}  # fmt: skip
# Where logits are far from 0, a cap near them: in the flat ends of a lower one gradients are what rounding leaves.
SOFTCAPS = {"large": 6.0, "wide": 60.0, "negative": 150.0, "positive": 150.0}
PACKING = frozenset({"cu_seqlens", "cu_seqlens_q"})
# A length up to which a second batch takes little time in the interpreter, and below which a window is a small one.
_SHORT = 64
_NARROW = {"45": "5", "21": "3"}
# The options that decide one another: where one is given, no other is drawn.
LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
_TOGETHER = (
    (*LENGTHS, "inputs"), ("batch", "inputs"), ("heads", "kv_heads", "tau", "inputs"), ("layout", "runs"),
    ("head_dim", "head_dim_v", "inputs"),
)  # fmt: skip
# Options that properties and levels decide by their sizes.
_SIZED = {LENGTH: "seqlen", SIDES: "seqlen", HEADS: "heads", _PADDED: "seqlen", _PACKED: "seqlen"}
# What every case has of its own.
_OWN = {
    "batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "runs", "cu_seqlens_k", "inputs",
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How large a case is."""

    length: int | None = None
    """In the place of that of its level."""
    key_heads: int | None = None
    """In the place of two, or of three on a GPU."""


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

    def place_of(self, factor: str, level: str) -> Place | None:
        """Where a level stands; None where the target does not take it."""
        for at, each in enumerate(self.each):
            names = [known.name for known in each.levels]
            if each.name == factor and level in names:
                return at, names.index(level)
        return None

    def around(self, case: Case) -> Factors:
        """The same for a target that was found to take a case: that has the simplest levels, and what was found."""
        found, each = found_by_trying(case), []
        simplest = {DTYPE: case.dtype, DIM: f"D={case.head_dim}"}
        simplest[MASK] = "causal" if case.causal else ""
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

    def title(self, row: Row, sizes: Sizes = Sizes()) -> str:  # noqa: B008 - it is frozen
        """In what a case is not the simplest."""
        levels, words = self._levels(row), {}
        for factor, number in zip(self.each, row, strict=True):
            if number:
                words[factor.name] = factor.levels[number].name
        rows, keys = self._rows_and_keys(levels, sizes)
        told = f"L={rows}" if rows == keys else f"M={rows} N={keys}"
        words |= {name: told for name in (LENGTH, SIDES) if name in words}
        if sizes.length is not None:
            words = {"": told, **words}
        return " ".join(dict.fromkeys(words.values())) or "simplest"

    def beyond(self, row: Row) -> str:
        """What a case asks for that no parameter of the target says that it takes; "" where there is no such thing."""
        asked = []
        for level in self._levels(row).values():
            if level.beyond and not level.told_by & self.takes.names:
                asked.append(level.beyond)
        return " and ".join(asked)

    def options(self, row: Row, sizes: Sizes = Sizes()) -> dict[str, Any]:  # noqa: B008 - it is frozen
        """The words of the command line for a case."""
        levels = self._levels(row)
        options: dict[str, Any] = {"head_dim": 16, **self.always}
        for level in levels.values():
            options |= level.options
        options |= self._sizes(levels, sizes)
        for place in enumerate(row):
            options |= self.found.get(place, {})
        options["layout"] = _layout(levels)
        if "softcap" in options:
            options["softcap"] = SOFTCAPS.get(options.get("pattern", ""), options["softcap"])
        if "window" in options and min(self._rows_and_keys(levels, sizes)) < _SHORT:
            words = options["window"].split(",")
            options["window"] = ",".join(_NARROW.get(word, word) for word in words)
        return options

    def special(self, level: Level) -> dict[str, Any]:
        """The words for one of SPECIAL: the simplest case but for its own."""
        options = self.options((0,) * len(self.each))
        for name in (
            ("batch", *LENGTHS) if {"seqlens", "cu_seqlens"} & level.options.keys() else ()
        ):
            options.pop(name, None)
        return {**options, **level.options}

    def _levels(self, row: Row) -> dict[str, Level]:
        pairs = zip(self.each, row, strict=True)
        return {factor.name: factor.levels[number] for factor, number in pairs}

    def _rows_and_keys(self, levels: Mapping[str, Level], sizes: Sizes) -> tuple[int, int]:
        length = sizes.length or Case.seqlen_q
        if sizes.length is None and LENGTH in levels:
            length = _LENGTHS[levels[LENGTH].name][self.on_gpu]
        longer, shorter = length + _APART, max(length - _APART, length // 3, 1)
        sides = {
            _EQUAL: (length, length), "M<N": (length, longer), "M>N": (length, shorter), "N<M": (longer, length),
            "N>M": (shorter, length), "M=1": (1, length),
        }  # fmt: skip
        return sides[levels[SIDES].name if SIDES in levels else _EQUAL]

    def _sizes(self, levels: Mapping[str, Level], asked: Sizes) -> dict[str, Any]:
        """Batches, heads and lengths; of several sequences the second is half as long."""
        mask = levels[MASK].name if MASK in levels else ""
        shapes, sizes = str(self.always.get("shapes", PLAIN)), dict[str, Any](heads=1)
        rows, keys = self._rows_and_keys(levels, asked)
        if "h" in shapes:
            sizes = self._heads(levels[HEADS].name if HEADS in levels else _EACH, asked)
        if mask == _PACKED or PACKING & self.takes.required:
            return sizes | _packed(rows, keys)
        is_padded = mask == _PADDED or "seqlens" in self.takes.required
        has_two = "b" in shapes and (self.on_gpu or is_padded or max(rows, keys) <= _SHORT)
        sizes["batch"] = 2 if has_two else 1
        sizes |= {"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}
        if is_padded:
            sizes["seqlens"] = f"{rows},{rows // 2}" if has_two else str(rows)
        return sizes

    def _heads(self, group: str, asked: Sizes) -> dict[str, Any]:
        count = asked.key_heads or (3 if self.on_gpu else 2)
        if group == _GROUPED:
            return {"heads": 2 * count, "kv_heads": count}
        return {"heads": count, "kv_heads": 1} if group == _MULTI_QUERY else {"heads": count}


def _packed(rows: int, keys: int) -> dict[str, Any]:
    ends = [
        ",".join(map(str, accumulate((length, length // 2), initial=0)))
        for length in (rows, keys)
    ]
    packed = {"cu_seqlens": ends[0]}
    return packed if rows == keys else packed | {"cu_seqlens_k": ends[1]}


def _layout(levels: Mapping[str, Level]) -> list[str]:
    """How the tensors lie; dO is named only where it would lie otherwise."""
    qkv, do = (
        list(levels[name].options["layout"]) if name in levels else [] for name in (QKV, DO)
    )
    if qkv and qkv[0].startswith("all="):
        return qkv + do
    return ["all=contiguous", *(word for word in qkv + do if not word.endswith("=contiguous"))]


def _excluded(*, two_lengths: bool) -> Iterator[set[tuple[str, str]]]:
    """Levels that no case has together, by the names of their factors."""
    for mask in (_PADDED, *(() if two_lengths else (_PACKED,))):
        for side in _UNEQUAL:
            yield {(MASK, mask), (SIDES, side)}
    # Nothing is counted from a corner, or both corners are one.
    yield {(OPTION, _TOP_LEFT), (SIDES, _EQUAL)}
    for factor in FACTORS:
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


def factors_of(
    takes: TargetSignature, given: Collection[str] = (), *, on_gpu: bool = False
) -> Factors:
    """The factors of the cases for a target.

    Args:
        given: the names of options that are the same in all of them.
        on_gpu: whether they run on a GPU, where lengths are those of larger tiles.
    """
    always, each, lacks = dict[str, Any](), list[Factor](), list[tuple[str, str]]()
    for parameter in sorted(takes.required):
        always |= _ALWAYS.get(parameter, {})
    decided = decided_by(given)
    for factor in FACTORS:
        levels = []
        for level in factor.levels:
            implied = {_SIZED.get(factor.name, ""), _SIZED.get(level.name, "")}
            if decided & (level.options.keys() | implied) or _is_always(level, takes, always):
                continue
            why_not = why_not_taken(level, takes)
            if why_not:
                lacks.append((level.name, why_not))
            elif level.family in ("", takes.family):
                levels.append(level)
        if len(levels) > 1:
            each.append(Factor(factor.name, tuple(levels)))
    return Factors(tuple(each), takes, on_gpu, always, tuple(lacks))


def decided_by(given: Collection[str]) -> set[str]:
    """Some options, with those that they decide."""
    decided = set(given)
    for names in _TOGETHER:
        if not set(names).isdisjoint(given):
            decided.update(names)
    return decided


def why_not_taken(level: Level, takes: TargetSignature) -> str:
    """Why a target of the level's family does not take it, by its signature; "" where it may."""
    if level.family not in ("", takes.family):
        return ""
    packed = sorted(takes.required & {"seqlens", "cu_seqlens"})
    if packed and level.name in _UNEQUAL:
        return f"takes one {packed[0]} for rows and keys"
    known = takes.names | ({"cu_seqlens"} if PACKING & takes.names else set())
    called = {"keep": "mask of what dropout keeps"}
    missing = [called.get(name, name) for name in level.needs if name not in known]
    return f"takes no {' and no '.join(missing)}" if missing else ""


def _is_always(level: Level, takes: TargetSignature, always: Mapping[str, Any]) -> bool:
    """Whether a level asks for what every case of the target has, or what another level asks for too."""
    packs, pads = bool(PACKING & takes.required), "seqlens" in takes.required
    told = {_PACKED: packs, _PADDED: packs or pads, "mask=padding": "seqlens" in takes.names}
    if level.name in told:
        return told[level.name]
    return bool(level.options) and level.options.items() <= always.items()


def is_set_by_it(option: str) -> bool:
    """Whether some case of a battery sets an option; a dtype that is given is that of all."""
    levels = [level for factor in FACTORS for level in factor.levels]
    in_some = any(option in level.options for level in (*levels, *SPECIAL))
    return option != "dtype" and (option in _OWN or in_some)
