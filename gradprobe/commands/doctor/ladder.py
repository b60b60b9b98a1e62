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
from ..suite.plan import PlannedCheck
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
    how: str = ""
    """COMPILED, INTERPRETED or CUDA; "" of a user's own kernel."""
    planned: PlannedCheck | None = None
    primitive: str = ""
    """FUNCTION or FUNCTION:DTYPE:PRECISION of `primitives`."""

    @property
    def in_full(self) -> str:
        """The command that shows all of its check; "" of a primitive."""
        if self.planned is None:
            return ""
        request = self.planned.request
        options = {name: word for name, word in request.options.items() if name != "recover"}
        return replace(self.planned, request=replace(request, options=options)).repro_command


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
_SEVERAL: Mapping[str, Any] = {**_SMALL, "batch": 2, "heads": 5}
_FULL: Mapping[str, Any] = {**_SMALL, "heads": 2, "seqlen": 37, "recover": False}
_PRIMITIVES = (
    ("atomic adds, one element a head", "lost adds", "add_one"),
    ("atomic adds, strided 2-D tensor", "strided adds", "add_strided"),
    ("dots in float32, IEEE", "wrong dots", "dots:float32:ieee"),
    ("dots in float32, TF32", "wrong dots", "dots:float32:tf32"),
    ("dots in float16", "wrong dots", "dots:float16:ieee"),
    ("dots in bfloat16", "wrong dots", "dots:bfloat16:ieee"),
)


def machine_rungs(how: str, device: str) -> list[Rung]:
    """The rungs of a machine in one way: COMPILED, INTERPRETED or CUDA."""
    rungs = [
        Rung(name, blames, how, primitive=primitive)
        for name, blames, primitive in _PRIMITIVES
        if how == COMPILED or not primitive.endswith("tf32")  # which only compiled Triton has
    ]

    def check(name: str, blames: str, target: str, options: Mapping[str, Any], run: str) -> None:
        words = {**options, "runs": [run], "device": device, "dots": "ieee"}
        planned = PlannedCheck(name, CheckRequest(target, None, None, words))
        rungs.append(Rung(name, blames, how, planned))

    one_tile = f"{IN_CUDA if how == CUDA else IN_TRITON}:one_tile_backward"
    check("a backward of one head", "the formulas", one_tile, _SMALL, "contiguous")
    check("every head receives a gradient", "lost heads", one_tile, _SEVERAL, "do=expanded")
    # Each source of CUDA C++ is compiled by its first rung, at the same time as the other.
    for run, blames in (("contiguous", "tile loops"), ("distinct", "strides")):
        for name in ("flash", "lazy"):
            target = f"{name}-cuda" if how == CUDA else name
            check(f"full backward, {name}, {run}", blames, target, _FULL, run)
    return rungs


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
    for rung in _of_target(request, traits):
        assert rung.planned is not None
        found.setdefault(repr(sorted(rung.planned.request.options.items(), key=str)), rung)
    return list(found.values())


def _of_target(request: CheckRequest, traits: TargetTraits) -> Iterator[Rung]:
    given, tile = request.options, min(traits.tile, _LARGEST_TILE)
    per_batch = any(name in given for name in _PER_BATCH)
    is_fixed = any(name in given for name in _LENGTHS)
    taus = str(given.get("tau", "")).split(",")
    heads = int(given.get("heads", max(2, given.get("kv_heads", 1), len(taus))))
    batch = given.get("batch", 2)
    lower: dict[str, Any] = {"recover": False, "head_dim": 32}
    if not is_fixed:
        lower["seqlen"] = tile
    if traits.family == "lazy":
        lower["tau"] = "-0.5"
        if "bias" in traits.tensors:
            lower["bias_window"] = _LONG_BIAS
    lower |= {**given, "heads": heads, "batch": batch if per_batch else 1}

    def rung(name: str, blames: str, run: str = "contiguous", **options: Any) -> Rung:
        words = {**lower, **options, "runs": [run]}
        return Rung(name, blames, planned=PlannedCheck(name, replace(request, options=words)))

    single: dict[str, Any] = {"heads": 1}
    if "kv_heads" in given:
        single["kv_heads"] = 1
    if "tau" in given:
        single["tau"] = taus[0]
    several, whole = plural(heads, "head"), "" if is_fixed else ", one tile"
    yield rung(f"1 head{whole}", "formulas, masks, dots", **single)
    if heads > 1:
        yield rung(f"{several}{whole}", "what tells heads apart")
    if not is_fixed:
        yield rung(f"{several}, many tiles", "loops over tiles", seqlen=3 * tile)
        partial = 2 * tile + tile // 2 + 1
        yield rung(f"{several}, a partial tile", "the end of a tile", seqlen=partial)
    # dO first: it comes from autograd, and nobody chose how it lies.
    for tensor in sorted(traits.tensors, key=lambda tensor: tensor != "do"):
        moved = title(tensor)
        yield rung(f"{several}, {moved} moved", f"strides of {moved}", f"{tensor}=distinct-unit")
    yield rung(f"{several}, dO expanded", "a dO as from .sum()", "do=expanded")
    yield rung(f"{several}, all moved, no unit stride", "last strides taken as 1", "distinct")
    if batch > 1 and not per_batch:
        apart = "what tells batches apart"
        yield rung(f"{batch} batches, all moved", apart, "distinct-unit", batch=batch)
    last = PlannedCheck("", request)
    yield Rung("the case of gradprobe check", "what no rung below covers", planned=last)
