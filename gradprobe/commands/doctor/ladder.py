"""Ladders: the rungs of a machine, and those of a user's own kernel, from the simplest up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.failures import UsageFailure
from ...model.intermediates import title
from ...model.number import plural
from ..suite.checked import PlannedCheck
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
        return Rung(title, blames, how, PlannedCheck(title, CheckRequest(target, None, None, words)))

    many = {**_SMALL, "batch": 2, "heads": 5}
    rungs += [
        check("a backward of one head", "the formulas", f"{own}:one_tile_backward", _SMALL, "contiguous"),
        check("every head receives a gradient", "lost heads", f"{own}:one_tile_backward", many, "do=expanded"),
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
# Interpreted programs take a millisecond each: longer tiles than these are seen well enough at part of their length.
_LARGEST_TILE = 128
# A bias that covers every distance of a rung, and one that covers few.
_LONG_BIAS, _SHORT_BIAS = 3 * _LARGEST_TILE, 7


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
    ladder, found = _Ladder(request, built), dict[str, Rung]()
    for rung in (*ladder.heads_and_tiles(), *ladder.moved(), *ladder.rest()):
        assert rung.planned is not None
        found.setdefault(repr(sorted(rung.planned.request.options.items(), key=str)), rung)
    return list(found.values())


class _Ladder:
    """What the rungs of a target have in common."""

    def __init__(self, request: CheckRequest, built: Built) -> None:
        self._request, self._built, self._given = request, built, request.options
        self._heads, self._batch = _heads(self._given), self._given.get("batch", 2)
        self._fixed = any(name in self._given for name in _LENGTHS)
        self._tile = min(built.tile, _LARGEST_TILE)
        self._name = plural(self._heads, "head")
        self._options = {"heads": self._heads, "batch": self._batch if _per_batch(self._given) else 1}

    def heads_and_tiles(self) -> Iterator[Rung]:
        """One head, then several; one tile, then several, then a part of one, unless a length is given."""
        tile, whole = self._tile, "" if self._fixed else ", one tile"
        yield self._rung(f"1 head{whole}", "formulas, masks, dots", **_one(self._given))
        if self._heads > 1:
            yield self._rung(f"{self._name}{whole}", "what tells heads apart")
        if not self._fixed:
            yield self._rung(f"{self._name}, many tiles", "loops over tiles", seqlen=3 * tile)
            part = 2 * tile + tile // 2 + 1
            yield self._rung(f"{self._name}, a partial tile", "the end of a tile", seqlen=part)

    def moved(self) -> Iterator[Rung]:
        """One tensor moved at a time, then all."""
        # dO first: it comes from autograd, and nobody chose how it lies.
        for name in sorted(self._built.tensors, key=lambda tensor: tensor != "do"):
            run = f"{name}=distinct-unit"
            yield self._rung(f"{self._name}, {title(name)} moved", f"strides of {title(name)}", run)
        yield self._rung(f"{self._name}, dO expanded", "a dO as from .sum()", "do=expanded")
        yield self._rung(f"{self._name}, all moved, no unit stride", "last strides taken as 1", "distinct")
        if self._batch > 1 and not _per_batch(self._given):
            words, blames = f"{self._batch} batches, all moved", "what tells batches apart"
            yield self._rung(words, blames, "distinct-unit", batch=self._batch)

    def rest(self) -> Iterator[Rung]:
        """What the lower rungs left out of the case."""
        given, is_lazy = self._given, self._built.family == "lazy"
        if "head_dim" not in given:
            yield self._rung(f"{self._name}, head dim 24", "dims no power of 2", head_dim=24)
        if is_lazy and "bias" in self._built.tensors and "bias_window" not in given:
            yield self._rung(f"{self._name}, a short bias", "the window of the bias", bias_window=_SHORT_BIAS)
        if is_lazy and "tau" not in given:
            yield self._rung(f"{self._name}, a tau of each sign", "what tau does to the mask", tau=None)
        yield Rung("the case of gradprobe check", "what no rung below covers", "", PlannedCheck("", self._request))

    def _rung(self, title: str, blames: str, run: str = "contiguous", **options: Any) -> Rung:
        words = {**self._given, **self._plain(), **self._options, **options}
        named = {name: word for name, word in words.items() if word is not None} | {"runs": [run]}
        return Rung(title, blames, "", PlannedCheck(title, replace(self._request, options=named)))

    def _plain(self) -> dict[str, Any]:
        """What the lower rungs have in place of what the case has by default."""
        plain: dict[str, Any] = {"head_dim": 32} if self._fixed else {"head_dim": 32, "seqlen": self._tile}
        if self._built.family == "lazy":
            plain |= {"tau": "-0.5"} | ({"bias_window": _LONG_BIAS} if "bias" in self._built.tensors else {})
        return {"recover": False, **{name: word for name, word in plain.items() if name not in self._given}}


def _heads(given: Mapping[str, Any]) -> int:
    """As many as are given; else two, or as many as other options ask for."""
    taus = len(str(given.get("tau", "")).split(","))
    return int(given.get("heads", max(2, given.get("kv_heads", 1), taus)))


def _one(given: Mapping[str, Any]) -> dict[str, Any]:
    """One head of one batch, where no option is about several."""
    few: dict[str, Any] = {"heads": 1} | ({"kv_heads": 1} if "kv_heads" in given else {})
    few |= {"tau": str(given["tau"]).partition(",")[0]} if "tau" in given else {}
    return few if _per_batch(given) else few | {"batch": 1}


def _per_batch(given: Mapping[str, Any]) -> bool:
    return any(name in given for name in ("seqlens", "cu_seqlens", "cu_seqlens_k"))


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
    return replace(rung, title=title, planned=PlannedCheck(title, replace(request, options=options)))
