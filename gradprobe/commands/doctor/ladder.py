"""The rungs of a machine, and those of a user's own kernel, from the simplest up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.failures import UsageFailure
from ...model.intermediates import title
from ...model.number import plural
from .primitives import IN_CUDA, IN_TRITON

if TYPE_CHECKING:
    from ...model.report import Report

GREEN, RED, FAILS, REFUSED, NOT_RUN = "green", "red", "fails", "refused", "not run"
COMPILED, INTERPRETED, CUDA = "compiled", "interpreted", "CUDA"


@dataclass(frozen=True)
class Rung:
    title: str
    blames: str
    """What is at fault where it is red and all below it is green; what it rules out where it is green."""
    request: CheckRequest | None = None
    how: str = ""
    """COMPILED, INTERPRETED or CUDA; "" of a user's own kernel."""
    primitive: str = ""
    """FUNCTION or FUNCTION:DTYPE:PRECISION of `primitives`, where it is no check."""

    @property
    def command(self) -> str:
        """What shows all of its check; "" of a primitive."""
        if self.request is None:
            return ""
        options = {**self.request.options}
        options.pop("recover", None)
        return replace(self.request, options=options).command()


@dataclass(frozen=True)
class RungResult:
    rung: Rung
    state: str
    """GREEN; RED where numbers are wrong, FAILS where it came to none; REFUSED by the target, or NOT_RUN."""
    words: str = ""
    """What was wrong, or why it was not run."""
    seconds: float = 0.0
    report: Report | None = None

    @property
    def is_bad(self) -> bool:
        return self.state in (RED, FAILS)


_SMALL: Mapping[str, Any] = {"batch": 1, "heads": 1, "seqlen": 16, "head_dim": 16}
_FULL: Mapping[str, Any] = {**_SMALL, "heads": 2, "seqlen": 37, "recover": False}
_PRIMITIVES = (
    ("atomic adds, one element a head", "lost adds", "add_one"),
    ("atomic adds, strided 2-D tensor", "strided adds", "add_strided"),
    ("dots in float32, IEEE", "wrong dots", "dots:float32:ieee"),
    ("dots in float32, TF32", "wrong dots", "dots:float32:tf32"),
    ("dots in float16", "wrong dots", "dots:float16:ieee"),
    ("dots in bfloat16", "wrong dots", "dots:bfloat16:ieee"),
)


def machine_rungs(how: str, device: str) -> Iterator[Rung]:
    """The rungs of a machine in one way: COMPILED, INTERPRETED or CUDA."""
    for name, blames, primitive in _PRIMITIVES:
        if how == COMPILED or not primitive.endswith("tf32"):  # which only compiled Triton has
            yield Rung(name, blames, how=how, primitive=primitive)

    def check(name: str, blames: str, target: str, run: str, options: Mapping[str, Any]) -> Rung:
        words = {**options, "runs": [run], "device": device, "dots": "ieee"}
        return Rung(name, blames, CheckRequest(target, None, None, words), how)

    one_tile = f"{IN_CUDA if how == CUDA else IN_TRITON}:one_tile_backward"
    several = {**_SMALL, "batch": 2, "heads": 5}
    yield check("a backward of one head", "the formulas", one_tile, "contiguous", _SMALL)
    yield check("every head receives a gradient", "lost heads", one_tile, "do=expanded", several)
    # Each source of CUDA C++ is compiled by its first rung, at the same time as the other.
    for run, blames in (("contiguous", "tile loops"), ("distinct", "strides")):
        for name in ("flash", "lazy"):
            target = f"{name}-cuda" if how == CUDA else name
            yield check(f"full backward, {name}, {run}", blames, target, run, _FULL)


# What a rung of the ladder sets itself.
SET = ("layout", "runs", "inputs", "repeat")
_PER_BATCH = ("seqlens", "cu_seqlens", "cu_seqlens_k")
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", *_PER_BATCH)
# Interpreted programs take a millisecond each: longer tiles than these are seen well enough at part of their length.
_LARGEST_TILE = 128
# A bias that covers every distance of a rung.
_LONG_BIAS = 3 * _LARGEST_TILE


@dataclass(frozen=True)
class TargetTraits:
    family: str
    tensors: tuple[str, ...]
    """Those that it is given in this case."""
    tile: int
    """The largest number of rows or keys in one of its tiles."""


def refuse_set(request: CheckRequest) -> None:
    """Raises UsageFailure where an option contradicts the ladder."""
    for name in SET:
        if name in request.options:
            given = command_line("", "", {name: request.options[name]}).split(maxsplit=1)[1]
            words = f"{given}: the rungs of doctor set it"
            raise UsageFailure(words, f"gradprobe check takes --{name}")


def target_rungs(request: CheckRequest, traits: TargetTraits) -> list[Rung]:
    """The rungs of a user's own kernel: heads, then tiles, then one tensor moved at a time, then the whole case.

    What is given on the command line is never exceeded, and a length that is given stays.
    """
    found: dict[str, Rung] = {}
    for title_, blames, options in _of_target(request, traits):
        rung = Rung(title_, blames, replace(request, options=options))
        found.setdefault(repr(sorted(options.items(), key=str)), rung)
    return list(found.values())


def _of_target(
    request: CheckRequest, traits: TargetTraits
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    given, tile = request.options, min(traits.tile, _LARGEST_TILE)
    per_batch = any(name in given for name in _PER_BATCH)
    is_fixed = any(name in given for name in _LENGTHS)
    taus = str(given.get("tau", "")).split(",")
    heads = int(given.get("heads", max(2, given.get("kv_heads", 1), len(taus))))
    batch = given.get("batch", 2)
    lower: dict[str, Any] = {"recover": False, "head_dim": 32, "runs": ["contiguous"]}
    if not is_fixed:
        lower["seqlen"] = tile
    if traits.family == "lazy":
        lower["tau"] = "-0.5"
        if "bias" in traits.tensors:
            lower["bias_window"] = _LONG_BIAS
    lower |= {**given, "heads": heads, "batch": batch if per_batch else 1}
    single = {**lower, "heads": 1}
    if "kv_heads" in given:
        single["kv_heads"] = 1
    if "tau" in given:
        single["tau"] = taus[0]
    several, whole = plural(heads, "head"), "" if is_fixed else ", one tile"
    yield f"1 head{whole}", "formulas, masks, dots", single
    if heads > 1:
        yield f"{several}{whole}", "what tells heads apart", lower
    if not is_fixed:
        yield f"{several}, many tiles", "loops over tiles", {**lower, "seqlen": 3 * tile}
        partial = 2 * tile + tile // 2 + 1
        yield f"{several}, a partial tile", "the end of a tile", {**lower, "seqlen": partial}
    # dO first: it comes from autograd, and nobody chose how it lies.
    for tensor in sorted(traits.tensors, key=lambda tensor: tensor != "do"):
        moved, run = title(tensor), [f"{tensor}=distinct-unit"]
        yield f"{several}, {moved} moved", f"strides of {moved}", {**lower, "runs": run}
    expanded = {**lower, "runs": ["do=expanded"]}
    yield f"{several}, dO expanded", "a dO as from .sum()", expanded
    strides = {**lower, "runs": ["distinct"]}
    yield f"{several}, all moved, no unit stride", "last strides taken as 1", strides
    if batch > 1 and not per_batch:
        apart = {**lower, "runs": ["distinct-unit"], "batch": batch}
        yield f"{batch} batches, all moved", "what tells batches apart", apart
    yield "the case of gradprobe check", "what no rung below covers", given
