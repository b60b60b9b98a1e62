"""Ladders: the rungs of a machine, and those of a user's own kernel, from the simplest up."""

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
    how: str
    """COMPILED, INTERPRETED or CUDA; "" of a user's own kernel."""
    planned: PlannedCheck | None = None
    primitive: str = ""
    """FUNCTION or FUNCTION:DTYPE:PRECISION of `primitives`."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others of its ladder."""
        return self.how, self.title

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
        """Whether it is at fault, or what is below it."""
        return self.state in (RED, FAILS)


_SMALL: Mapping[str, Any] = {"batch": 1, "heads": 1, "seqlen": 16, "head_dim": 16}
_FULL: Mapping[str, Any] = {**_SMALL, "heads": 2, "seqlen": 37, "recover": False}
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
        if precision == "tf32" and how != COMPILED:
            continue  # only compiled Triton has dots of TF32
        name = dtype if dtype != "float32" else f"{dtype}, {precision.upper()}"
        primitive = f"dots:{dtype}:{precision}"
        rungs.append(Rung(f"dots in {name}", "wrong dots", how, primitive=primitive))

    def check(title: str, blames: str, target: str, options: Mapping[str, Any], run: str) -> Rung:
        words = {**options, "runs": [run], "device": device, "dots": "ieee"}
        planned = PlannedCheck(title, CheckRequest(target, None, None, words))
        return Rung(title, blames, how, planned)

    one_tile, many = f"{own}:one_tile_backward", {**_SMALL, "batch": 2, "heads": 5}
    rungs += [
        check("a backward of one head", "the formulas", one_tile, _SMALL, "contiguous"),
        check("every head receives a gradient", "lost heads", one_tile, many, "do=expanded"),
    ]
    # Each source of CUDA C++ is compiled by its first rung, at the same time as the other.
    for run, blames in (("contiguous", "tile loops"), ("distinct", "strides")):
        for name in ("flash", "lazy"):
            target = f"{name}-cuda" if how == CUDA else name
            rungs.append(check(f"full backward, {name}, {run}", blames, target, _FULL, run))
    return rungs


# What a rung of the ladder sets itself.
SET = ("layout", "runs", "inputs", "repeat")
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")
_PER_BATCH = ("seqlens", "cu_seqlens", "cu_seqlens_k")
# Interpreted programs take a millisecond each: longer tiles than these are seen well enough at part of their length.
_LARGEST_TILE = 128
# A bias that covers every distance of a rung.
_LONG_BIAS = 3 * _LARGEST_TILE


@dataclass(frozen=True)
class TargetTraits:
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
            words = f"{given}: the rungs of doctor set it"
            raise UsageFailure(words, f"gradprobe check takes --{name}")


def target_rungs(request: CheckRequest, built: TargetTraits) -> list[Rung]:
    """The rungs of a user's own kernel: heads, then tiles, then one tensor moved at a time, then the whole case.

    What is given on the command line is never exceeded, and a length that is given stays.
    """
    found: dict[str, Rung] = {}
    for rung in _of_target(request, built):
        assert rung.planned is not None
        found.setdefault(repr(sorted(rung.planned.request.options.items(), key=str)), rung)
    return list(found.values())


def _of_target(request: CheckRequest, built: TargetTraits) -> Iterator[Rung]:
    given = request.options
    per_batch = any(name in given for name in _PER_BATCH)
    is_fixed = any(name in given for name in _LENGTHS)
    heads, batch, tile = _heads(given), given.get("batch", 2), min(built.tile, _LARGEST_TILE)
    lower: dict[str, Any] = {"recover": False, "head_dim": 32}
    lower |= {} if is_fixed else {"seqlen": tile}
    if built.family == "lazy":
        lower |= {"tau": "-0.5"}
        lower |= {"bias_window": _LONG_BIAS} if "bias" in built.tensors else {}
    several = {"heads": heads, "batch": batch if per_batch else 1}

    def rung(title: str, blames: str, run: str = "contiguous", **options: Any) -> Rung:
        words = {**lower, **given, **several, **options, "runs": [run]}
        return Rung(title, blames, "", PlannedCheck(title, replace(request, options=words)))

    name = plural(heads, "head")
    whole = "" if is_fixed else ", one tile"
    yield rung(f"1 head{whole}", "formulas, masks, dots", **_one_head(given, per_batch))
    if heads > 1:
        yield rung(f"{name}{whole}", "what tells heads apart")
    if not is_fixed:
        yield rung(f"{name}, many tiles", "loops over tiles", seqlen=3 * tile)
        partial = 2 * tile + tile // 2 + 1
        yield rung(f"{name}, a partial tile", "the end of a tile", seqlen=partial)
    # dO first: it comes from autograd, and nobody chose how it lies.
    for tensor in sorted(built.tensors, key=lambda tensor: tensor != "do"):
        moved = title(tensor)
        yield rung(f"{name}, {moved} moved", f"strides of {moved}", f"{tensor}=distinct-unit")
    yield rung(f"{name}, dO expanded", "a dO as from .sum()", "do=expanded")
    yield rung(f"{name}, all moved, no unit stride", "last strides taken as 1", "distinct")
    if batch > 1 and not per_batch:
        apart = "what tells batches apart"
        yield rung(f"{batch} batches, all moved", apart, "distinct-unit", batch=batch)
    last = PlannedCheck("", request)
    yield Rung("the case of gradprobe check", "what no rung below covers", "", last)


def _heads(given: Mapping[str, Any]) -> int:
    """As many as are given; else two, or as many as other options ask for."""
    taus = len(str(given.get("tau", "")).split(","))
    return int(given.get("heads", max(2, given.get("kv_heads", 1), taus)))


def _one_head(given: Mapping[str, Any], per_batch: bool) -> dict[str, Any]:
    """One head of one batch, where no option is about several."""
    few: dict[str, Any] = {"heads": 1} if per_batch else {"heads": 1, "batch": 1}
    if "kv_heads" in given:
        few["kv_heads"] = 1
    if "tau" in given:
        few["tau"] = str(given["tau"]).partition(",")[0]
    return few
