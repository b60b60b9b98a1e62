"""The rungs of a machine and of a user's own kernel, from the simplest up; and what the simplest kernels must give."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.failures import UsageFailure
from ...model.intermediates import title
from ...model.number import plural

if TYPE_CHECKING:
    from ...model.report import Report

# The modules of the kernels, whose functions have the same names.
IN_TRITON, IN_CUDA = "gradprobe.kernels.triton.rungs", "gradprobe.targets.adapters.cuda_kernels"
# Programs that add to one element, and their sum, which float32 holds exactly in whatever order they come.
_PROGRAMS = 100
_SUM = _PROGRAMS * (_PROGRAMS + 1) // 2
_SIZE, _DEPTH = 64, 128

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
    """FUNCTION or FUNCTION:DTYPE:PRECISION of the kernels, where it is no check."""

    @property
    def command(self) -> str:
        """What shows all of its check; "" of a primitive."""
        if self.request is None:
            return ""
        options = {
            name: word for name, word in self.request.options.items() if name != "recover"
        }
        return replace(self.request, options=options).command()


@dataclass(frozen=True)
class RungResult:
    rung: Rung
    state: str
    """GREEN; RED where numbers are wrong, FAILS where it came to none; REFUSED by the target, or NOT_RUN."""
    words: str = ""
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
# Each source of CUDA C++ is compiled by its first rung, at the same time as the other.
_CHECKS = (
    ("a backward of one head", "the formulas", "", "contiguous", _SMALL),
    ("every head receives a gradient", "lost heads", "", "do=expanded", {**_SMALL, "batch": 2, "heads": 5}),
    ("full backward, flash, contiguous", "tile loops", "flash", "contiguous", _FULL),
    ("full backward, lazy, contiguous", "tile loops", "lazy", "contiguous", _FULL),
    ("full backward, flash, distinct", "strides", "flash", "distinct", _FULL),
    ("full backward, lazy, distinct", "strides", "lazy", "distinct", _FULL),
)  # fmt: skip


def machine_rungs(how: str, device: str) -> Iterator[Rung]:
    """The rungs of a machine in one way: COMPILED, INTERPRETED or CUDA."""
    for name, blames, primitive in _PRIMITIVES:
        if how == COMPILED or not primitive.endswith("tf32"):  # which only compiled Triton has
            yield Rung(name, blames, how=how, primitive=primitive)
    one_tile = f"{IN_CUDA if how == CUDA else IN_TRITON}:one_tile_backward"
    for name, blames, kernel, run, options in _CHECKS:
        full = f"{kernel}-cuda" if how == CUDA else kernel
        words = {**options, "runs": [run], "device": device, "dots": "ieee"}
        yield Rung(
            name, blames, CheckRequest(full if kernel else one_tile, None, None, words), how
        )


_SET = ("layout", "runs", "inputs", "repeat")
_PER_BATCH = {"seqlens", "cu_seqlens", "cu_seqlens_k"}
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", *_PER_BATCH}
# Interpreted programs take a millisecond each: longer tiles than these are seen well enough at part of their length.
_LARGEST_TILE = 128


@dataclass(frozen=True)
class TargetTraits:
    family: str
    tensors: tuple[str, ...]
    tile: int
    """The largest number of rows or keys in one of its tiles."""


def refuse_set(request: CheckRequest) -> None:
    """Raises UsageFailure where an option contradicts the ladder."""
    for name in _SET:
        if name in request.options:
            given = command_line("", "", {name: request.options[name]}).split(maxsplit=1)[1]
            words = f"{given}: the rungs of doctor set it"
            raise UsageFailure(words, f"gradprobe check takes --{name}")


def target_rungs(request: CheckRequest, traits: TargetTraits) -> list[Rung]:
    """The rungs of a user's own kernel: heads, then tiles, then one tensor moved at a time, then the whole case.

    What is given on the command line is never exceeded, and a length that is given stays.
    """
    found: dict[str, Rung] = {}
    for name, blames, options in _of_target(request.options, traits):
        rung = Rung(name, blames, replace(request, options=options))
        found.setdefault(repr(sorted(options.items(), key=str)), rung)
    return list(found.values())


def _of_target(
    given: Mapping[str, Any], traits: TargetTraits
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    tile, is_fixed = min(traits.tile, _LARGEST_TILE), not _LENGTHS.isdisjoint(given)
    is_per_batch = not _PER_BATCH.isdisjoint(given)
    taus = str(given.get("tau", "")).split(",")
    heads = int(given.get("heads", max(2, given.get("kv_heads", 1), len(taus))))
    batch = given.get("batch", 2)
    lower: dict[str, Any] = {"recover": False, "head_dim": 32, "runs": ["contiguous"]}
    if not is_fixed:
        lower["seqlen"] = tile
    if traits.family == "lazy":
        lower["tau"] = "-0.5"
        if "bias" in traits.tensors:  # of every distance of a rung
            lower["bias_window"] = 3 * _LARGEST_TILE
    lower |= {**given, "heads": heads, "batch": batch if is_per_batch else 1}
    single = {**lower, "heads": 1}
    single |= {"kv_heads": 1} if "kv_heads" in given else {}
    single |= {"tau": taus[0]} if "tau" in given else {}
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
    expanded, strides = {**lower, "runs": ["do=expanded"]}, {**lower, "runs": ["distinct"]}
    yield f"{several}, dO expanded", "a dO as from .sum()", expanded
    yield f"{several}, all moved, no unit stride", "last strides taken as 1", strides
    if batch > 1 and not is_per_batch:
        apart = {**lower, "runs": ["distinct-unit"], "batch": batch}
        yield f"{batch} batches, all moved", "what tells batches apart", apart
    yield "the case of gradprobe check", "what no rung below covers", given


def run_primitive(name: str, cuda: bool, device: str) -> str:
    """What a primitive in CUDA C++ or Triton did wrong; "" where nothing. Failure where it does not compile or run."""
    function, *words = name.split(":")
    if not cuda:
        from ...model.resolution import resolve
        from ...runtime.backend import make_interpreter_right

        options = {"dtype": words[0] if words else "float32", "device": device}
        make_interpreter_right(resolve(options, "softmax", takes_bias=False))
    kernels = importlib.import_module(IN_CUDA if cuda else IN_TRITON)
    if function == "dots":
        return _dots(kernels, device, *words)
    return _adds(getattr(kernels, function), function == "add_one", device)


def _adds(add: Any, is_one_axis: bool, device: str) -> str:
    import torch

    around = torch.zeros(40, 70, device=device)
    out = around[3:11, 1] if is_one_axis else around[3:36:2, 5:60:3]
    add(out, _PROGRAMS)
    wrong = out[~(out == _SUM)]
    if wrong.numel():
        subject = f"of {_PROGRAMS} atomic adds an element, {wrong.numel()} of {out.numel()} sums"
        return f"{subject} are wrong: {wrong.flatten()[0]:g} and not {_SUM}"
    out.zero_()
    return "it added to memory between its elements" if bool(around.any()) else ""


def _dots(kernels: Any, device: str, dtype: str, precision: str) -> str:
    import torch

    from ...numerics.declared_precision import dot_error, output_rounding, precision_of

    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    a = torch.randn(_SIZE, _DEPTH, generator=draw).to(kind)
    b = torch.randn(_DEPTH, _SIZE, generator=draw).to(kind)
    # Of two operands, and of the transpose of one.
    found = kernels.dots(a.to(device), b.to(device), precision).cpu().double()
    exact, contract = a.double() @ b.double(), precision_of(dtype, precision)
    bound = dot_error(a.double(), b.double(), contract, unit=contract.operand)
    bound = bound + output_rounding(exact, bound, torch.float32)
    error = (found - exact).abs()
    wrong = ~(error <= bound)
    if not bool(wrong.any()):
        return ""
    form = "of two operands" if bool(wrong[0].any()) else "of the transpose of one operand"
    worst = float((error / bound).nan_to_num(float("inf")).max())
    count = f"{int(wrong.sum())} of {wrong.numel()} elements are wrong"
    return f"{count}, worst {worst:.3g} times the bound, {form}"
