"""Cases drawn from all that a target takes, the same for a seed; and what a case costs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...inputs.options import parse
from ...model.case import DTYPES, Case
from ...model.failures import UsageFailure
from ...model.resolution import resolve
from .battery import ALWAYS, FEWER, OWN_DIM, PACKING, SOFTCAPS, TWO_LENGTHS, ends
from .plan import titled
from .takes import TargetSignature

# Draws of one case before it is said that none suits.
_MOST = 1000
LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
# The options that decide one another: where one is given, none of the others is drawn.
_TOGETHER = (
    LENGTHS,
    ("heads", "kv_heads", "tau"),
    ("layout", "runs"),
    ("head_dim", "head_dim_v"),
)
_PATTERNS = ("normal", "normal", "wide", "small", "large", "negative", "offset", "lowrank")
_LAYOUTS = ("contiguous", "contiguous", "blhd", "distinct-unit", "distinct", "offset")


def drawn(
    takes: TargetSignature, given: Mapping[str, Sequence[Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """Options of cases that a target may take, none twice, until there are no others.

    Args:
        given: the values that options of the command line are drawn from; all else is drawn as the target takes it.

    Raises:
        UsageFailure: no case has such options.
    """
    seen = set[str]()
    for number in itertools.count():
        rng = random.Random(f"{seed}:{number}")
        for _ in range(_MOST):
            options = _options(takes, given, rng)
            name = repr(sorted(options.items()))
            if name not in seen and case_of(options, takes) is not None:
                seen.add(name)
                yield options | {"seed": options.get("seed", rng.randrange(1 << 16))}
                break
        else:
            if seen:
                return
            raise UsageFailure(
                "sweep: this target takes no case with these options",
                "give fewer, or more values for them",
            )


def case_of(options: Mapping[str, Any], takes: TargetSignature) -> Case | None:
    """The case of options; None where there is none."""
    takes_bias, packs = "bias" in takes.names, bool(PACKING & takes.required)
    try:
        return resolve(
            {**parse(options), "device": "cpu"}, takes.family, takes_bias=takes_bias, packs=packs
        )
    except UsageFailure:
        return None


def _options(
    takes: TargetSignature, given: Mapping[str, Sequence[Any]], rng: random.Random
) -> dict[str, Any]:
    """Some case; what is given is chosen among, and nothing is drawn that it decides."""
    chosen = {name: rng.choice(words) for name, words in given.items()}
    decided = {
        name for names in _TOGETHER if any(name in chosen for name in names) for name in names
    }
    free = _softmax(takes, rng) if takes.family == "softmax" else _lazy(takes, rng)
    own = {"dtype": rng.choice(DTYPES), **free, "pattern": rng.choice(_PATTERNS)}
    own = {name: word for name, word in own.items() if name not in decided} | chosen
    if "softcap" in own and "softcap" not in chosen:
        own["softcap"] = SOFTCAPS.get(own["pattern"], own["softcap"])
    return own


def _lazy(takes: TargetSignature, rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "batch": rng.choice((1, 2)),
        "heads": rng.choice((1, 2, 3, 4)),
        "seqlen": _length(rng),
    }
    options |= {"head_dim": rng.choice((16, 32, 64)), "layout": _layout(rng)}
    if "bias" in takes.names:
        options |= rng.choice(({}, {"bias": False}, {"bias_window": rng.randrange(1, 80)}))
    if {"block_m", "block_n"} <= takes.names and rng.random() < 0.3:
        options |= {"block_m": rng.choice((16, 32)), "block_n": rng.choice((16, 32))}
    return options


def _softmax(takes: TargetSignature, rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"head_dim": rng.choice((16, 16, 32, 64)), "layout": _layout(rng)}
    kv_heads, group = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 1, 2, 3))
    options |= {"heads": kv_heads * group, "kv_heads": kv_heads}
    if rng.random() < 0.1:
        options["head_dim_v"] = rng.choice((16, 32))
    options |= _sized(takes, rng)
    options |= {"causal": rng.random() < 0.5} if "causal" in takes.names else {}
    for name, word in (
        ("window", f"{rng.randrange(60)},{rng.choice((-1, 0, rng.randrange(60)))}"),
        ("mask", rng.choice(("random", "dead-rows", "padding"))),
        *((name, ALWAYS[name][name]) for name in ("softcap", "bias", "alibi", "sinks")),
    ):  # fmt: skip
        if name in takes.required or (name in takes.names and rng.random() < 0.25):
            options[name] = word
    if "keep" in takes.required or ("keep" in takes.names and rng.random() < 0.15):
        options |= ALWAYS["keep"]
    if "scale" in takes.names and rng.random() < 0.2:
        options["scale"] = rng.choice((0.1, 0.4))
    if {"align", "causal"} <= takes.names and rng.random() < 0.2:
        options["align"] = "top-left"
    if {"block_m", "block_n"} <= takes.names and rng.random() < 0.3:
        options |= {"block_m": rng.choice((16, 32)), "block_n": rng.choice((16, 32))}
    return options


def _sized(takes: TargetSignature, rng: random.Random) -> dict[str, Any]:
    """Batches and lengths: of one sequence each, padded or packed as the target takes it."""
    rows, batch = _length(rng), rng.choice((1, 2))
    if PACKING & takes.required or (PACKING & takes.names and rng.random() < 0.4):
        lengths = [rng.choice((0, 1, _length(rng))) for _ in range(rng.choice((1, 2)))] + [rows]
        return {"cu_seqlens": ends(lengths)}
    if "seqlens" in takes.required or ("seqlens" in takes.names and rng.random() < 0.3):
        live = [rows, *(rng.randrange(rows + 1) for _ in range(batch - 1))]
        return {"batch": batch, "seqlen": rows, "seqlens": ",".join(map(str, live))}
    keys = rows if rng.random() < 0.6 else _length(rng)
    return {
        "batch": batch,
        **({"seqlen": rows} if rows == keys else {"seqlen_q": rows, "seqlen_k": keys}),
    }


def _length(rng: random.Random) -> int:
    """Below a tile, a multiple of one, and one more or less; seldom more than two tiles of 64."""
    tile = rng.choice((16, 16, 32, 32, 64, 128))
    return rng.choice(
        (rng.randrange(1, 16), tile, tile - 1, tile + 1, rng.randrange(1, 2 * tile))
    )


def _layout(rng: random.Random) -> list[str]:
    if rng.random() < 0.15:
        return [f"all={rng.choice(('distinct', 'distinct-unit', 'offset'))}"]
    qkv = rng.choice((*_LAYOUTS, "packed"))
    do = rng.choice((*_LAYOUTS, "expanded"))
    layout = [f"{name}={qkv}" for name in "qkv" if qkv != "contiguous"]
    return [*layout, *([f"do={do}"] if do != "contiguous" else [])] or ["contiguous"]


def cost(case: Case | None) -> float:
    """About how long a case takes, where 1 is what each takes however small it is."""
    if case is None:
        return 1.0
    tiles = -(-case.seqlen_q // case.block_m) * -(-case.seqlen_k // case.block_n)
    return 1.0 + case.batch * case.heads * tiles / 16


# What a title says only where it is otherwise.
_USUAL = {"pattern": "normal", "causal": False, "batch": 1}


def title_of(options: Mapping[str, Any], alike: Collection[str]) -> str:
    """A name for a drawn case: its options but the seed, what is usual, and those in which all are alike."""
    usual = {**_USUAL, "kv_heads": options.get("heads"), "head_dim_v": options.get("head_dim")}
    told, placed = dict[str, Any](), list[str]()
    for name, word in options.items():
        is_usual = name in usual and usual[name] == word
        if not is_usual and name not in ("seed", "layout", *alike):
            told[name] = word
    for word in () if "layout" in alike else options.get("layout", ()):
        if word.startswith("q="):
            placed.append(f"qkv{word[1:]}")
        elif not word.startswith(("k=", "v=")):
            placed.append(word.removeprefix("all="))
    return " ".join([*titled(told), *placed])


def beyond(options: Mapping[str, Any], takes: TargetSignature) -> str:
    """What a drawn case asks for that no parameter of the target tells; "" where there is no such thing."""
    asked = [FEWER] if options.get("kv_heads", 1) != options.get("heads", 1) else []
    if options.get("head_dim_v", options.get("head_dim")) != options.get("head_dim"):
        asked.append(OWN_DIM)
    is_told = bool(TWO_LENGTHS["told_by"] & takes.names)
    if options.get("seqlen_q") != options.get("seqlen_k") and not is_told:
        asked.append(TWO_LENGTHS["beyond"])
    return " and ".join(asked)
