"""Ladders: the rungs of a machine, and those of a user's own kernel, from the simplest up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.failures import UsageFailure
from ...model.intermediates import lookup
from ..suite.checked import Planned
from .primitives import IN_CUDA, IN_TRITON
from .rung import COMPILED, CUDA, Rung

_SMALL: Mapping[str, Any] = {"batch": 1, "heads": 1, "seqlen": 16, "head_dim": 16}
_FULL: Mapping[str, Any] = {"batch": 1, "heads": 2, "seqlen": 37, "head_dim": 16, "recover": False}
_DOTS = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"))


def machine_rungs(how: str, device: str) -> list[Rung]:
    """The rungs of a machine in one way.

    Args:
        how: COMPILED, INTERPRETED or CUDA.
    """
    own = IN_CUDA if how == CUDA else IN_TRITON
    rungs = [
        Rung("atomic adds, one element a head", "lost adds", how, primitive="add_one"),
        Rung("atomic adds, strided 2-D tensor", "strided adds", how, primitive="add_strided"),
    ]
    for dtype, precision in _DOTS:
        if (precision == "tf32" and how != COMPILED) or (dtype == "float32" and how == CUDA and precision == "tf32"):
            continue  # only compiled Triton has dots of TF32
        name = dtype if dtype != "float32" else f"{dtype}, {precision.upper()}"
        rungs.append(Rung(f"dots in {name}", "wrong dots", how, primitive=f"dots:{dtype}:{precision}"))

    def check(title: str, blames: str, target: str, options: Mapping[str, Any], run: str) -> Rung:
        words = {**options, "runs": [run], "device": device, "dots": "ieee"}
        return Rung(title, blames, how, Planned(title, CheckRequest(target, None, None, words)))

    many = {**_SMALL, "batch": 2, "heads": 5}
    rungs += [
        check("a backward of one head", "the formulas", f"{own}:one_tile_backward", _SMALL, "contiguous"),
        check("every head receives a gradient", "lost heads", f"{own}:one_tile_backward", many, "do=expanded"),
    ]
    for name in ("flash", "lazy"):
        target = f"{name}-cuda" if how == CUDA else name
        for run in ("contiguous", "distinct"):
            blames = "tile loops" if run == "contiguous" else "strides"
            rungs.append(check(f"full backward, {name}, {run}", blames, target, _FULL, run))
    return rungs


# What a rung of the ladder sets itself.
SET = ("layout", "runs", "inputs", "repeat")
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
_TENSORS = ("q", "k", "v", "do")
# Interpreted programs take a millisecond each: longer tiles than these are seen well enough at part of their length.
_LARGEST_TILE = 128


@dataclass(frozen=True)
class Built:
    """What of a target decides its rungs."""

    family: str
    tensors: tuple[str, ...]
    """Those that it is given in this case."""
    tile: int
    """The largest number of rows or keys in one of its tiles."""


def refuse_set(request: CheckRequest) -> None:
    """Does nothing where no option contradicts the ladder.

    Raises:
        UsageFailure: one does.
    """
    for name in SET:
        if name in request.options:
            given = command_line("", "", {name: request.options[name]}).split(maxsplit=1)[1]
            raise UsageFailure(f"{given}: the rungs of doctor set it", f"gradprobe check takes --{name}")


def target_rungs(request: CheckRequest, built: Built) -> list[Rung]:
    """The rungs of a user's own kernel: heads, then tiles, then one tensor moved at a time, then the rest of the case.

    What is given on the command line is never exceeded, and a length that is given stays.
    """
    rungs = list(_target_rungs(request, built))
    found: dict[str, Rung] = {}
    for rung in rungs:
        assert rung.planned is not None
        found.setdefault(repr(sorted(rung.planned.request.options.items(), key=str)), rung)
    return list(found.values())


def _target_rungs(request: CheckRequest, built: Built) -> Iterator[Rung]:
    given = request.options
    heads, batch, tile = given.get("heads", 2), given.get("batch", 2), min(built.tile, _LARGEST_TILE)
    fixed = any(name in given for name in _LENGTHS)
    base = {**given, **_plain(built, given, fixed, tile)}

    def rung(title: str, blames: str, run: str = "contiguous", **options: Any) -> Rung:
        words = {name: word for name, word in {**base, **options}.items() if word is not None}
        return Rung(title, blames, "", Planned(title, replace(request, options={**words, "runs": [run]})))

    many = f"{heads} heads"
    if heads > 1:
        yield rung("1 head, one tile" if not fixed else "1 head", "formulas, masks, dots", **_one(given))
    one = {"heads": heads, "batch": 1 if not _per_batch(given) else batch}
    yield rung(f"{many}, one tile" if not fixed else many, "what tells heads apart", **one)
    if not fixed:
        yield rung(f"{many}, many tiles", "loops over tiles", **one, seqlen=3 * tile)
        yield rung(f"{many}, a partial tile", "the end of a tile", **one, seqlen=2 * tile + tile // 2 + 1)
    # dO first: it comes from autograd, and nobody chose how it lies.
    for name in sorted(built.tensors, key=lambda tensor: tensor != "do"):
        yield rung(f"{many}, {told(name)} moved", f"strides of {told(name)}", f"{name}=distinct-unit", **one)
    yield rung(f"{many}, dO expanded", "a dO as from .sum()", "do=expanded", **one)
    yield rung(f"{many}, all moved, no unit stride", "last strides taken as 1", "distinct", **one)
    if batch > 1 and not _per_batch(given):
        yield rung(f"{batch} batches, all moved", "what tells batches apart", "distinct-unit", **one | {"batch": batch})
    if "head_dim" not in given:
        yield rung(f"{many}, head dim 24", "dims no power of 2", **one, head_dim=24)
    yield from _of_case(rung, built, given, one)
    yield Rung("the case of gradprobe check", "what is in no rung below", "", Planned("", request))


def _of_case(rung: Any, built: Built, given: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[Rung]:
    """What the lower rungs left out of the case."""
    if built.family != "lazy":
        return
    many = f"{one['heads']} heads"
    if "bias_window" not in given and "bias" in built.tensors:
        yield rung(f"{many}, a short bias", "the window of the bias", **one, bias_window=7)
    if "tau" not in given:
        yield rung(f"{many}, a tau of each sign", "what tau does to the mask", **one, tau=None)


def _plain(built: Built, given: Mapping[str, Any], fixed: bool, tile: int) -> dict[str, Any]:
    """What the lower rungs have in place of what the case has by default."""
    plain: dict[str, Any] = {} if fixed else {"seqlen": tile}
    if built.family == "lazy":
        plain |= {} if "tau" in given else {"tau": "-0.5"}
        longest = 3 * _LARGEST_TILE
        plain |= {"bias_window": longest} if "bias" in built.tensors and "bias_window" not in given else {}
    return {"head_dim": given.get("head_dim", 32), "recover": False, **plain}


def _one(given: Mapping[str, Any]) -> dict[str, Any]:
    """One head of one batch, where no option is about several."""
    few: dict[str, Any] = {"heads": 1} | ({"kv_heads": 1} if "kv_heads" in given else {})
    few |= {"tau": str(given["tau"]).partition(",")[0]} if "tau" in given else {}
    return few if _per_batch(given) else few | {"batch": 1}


def _per_batch(given: Mapping[str, Any]) -> bool:
    return any(name in given for name in ("seqlens", "cu_seqlens", "cu_seqlens_k"))


def told(tensor: str) -> str:
    """A tensor as people write it: dO, q, dBias."""
    row = lookup(tensor)
    return "dO" if tensor == "do" else row.name if row and tensor != "o" else tensor


def narrower(rung: Rung, rungs: Sequence[Rung]) -> Rung | None:
    """A rung above the first ones with one head: None where it is one of them, or has one head anyway."""
    planned = rung.planned
    if planned is None or rung in rungs[:2] or not rung.title or "," not in rung.title:
        return None
    request = planned.request
    options = {**request.options, **_one(request.options)}
    if options == dict(request.options):
        return None
    title = f"1 head, {rung.title.partition(', ')[2]}"
    return replace(rung, title=title, planned=Planned(title, replace(request, options=options)))
