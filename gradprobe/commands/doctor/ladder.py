"""The rungs of a machine and of a user's own kernel, from the simplest up, as plans of checks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.assignment import TENSORS
from ...model.failures import UsageFailure
from ...model.intermediates import title
from ...model.number import plural
from ..suite.plan import PlannedCheck, TargetSignature

# The modules of the kernels, whose functions have the same names.
IN_TRITON, IN_CUDA = "gradprobe.kernels.triton.rungs", "gradprobe.targets.adapters.cuda_kernels"
COMPILED, INTERPRETED, CUDA = "compiled", "interpreted", "CUDA"


@dataclass(frozen=True)
class Rung(PlannedCheck):
    blames: str = ""
    """What is at fault where it is red and all below it is green; what it rules out where it is green."""
    how: str = ""

    @property
    def is_primitive(self) -> bool:
        return bool(self.how) and "runs" not in self.request.options

    @property
    def shared(self) -> tuple[object, ...]:
        return (self.how,) if self.how else super().shared

    @property
    def command(self) -> str:
        """What shows all of its check; "" of a primitive."""
        given = self.request.options.items()
        options = {name: word for name, word in given if name != "recover"}
        return "" if self.is_primitive else replace(self.request, options=options).command()


_SMALL: Mapping[str, Any] = {"batch": 1, "heads": 1, "seqlen": 16, "head_dim": 16}
_FULL: Mapping[str, Any] = {**_SMALL, "heads": 2, "seqlen": 37, "recover": False}
_PLAIN, _APART, _EXPANDED = ["contiguous"], ["distinct"], ["do=expanded"]
# Each source of CUDA C++ is compiled by its first rung, at the same time as the other.
_OF_MACHINE: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
    ("atomic adds, one element a head", "lost adds", "add_one", {}),
    ("atomic adds, strided 2-D tensor", "strided adds", "add_strided", {}),
    ("dots in float32, IEEE", "wrong dots", "dots", {"dtype": "float32"}),
    ("dots in float32, TF32", "wrong dots", "dots", {"dtype": "float32", "dots": "tf32"}),
    ("dots in float16", "wrong dots", "dots", {"dtype": "float16"}),
    ("dots in bfloat16", "wrong dots", "dots", {"dtype": "bfloat16"}),
    ("a backward of one head", "the formulas", "one_tile_backward", {**_SMALL, "runs": _PLAIN}),
    ("every head receives a gradient", "lost heads", "one_tile_backward",
     {**_SMALL, "batch": 2, "heads": 5, "runs": _EXPANDED}),
    ("full backward, flash, contiguous", "tile loops", "flash", {**_FULL, "runs": _PLAIN}),
    ("full backward, lazy, contiguous", "tile loops", "lazy", {**_FULL, "runs": _PLAIN}),
    ("full backward, flash, distinct", "strides", "flash", {**_FULL, "runs": _APART}),
    ("full backward, lazy, distinct", "strides", "lazy", {**_FULL, "runs": _APART}),
)  # fmt: skip


def machine_rungs(how: str, device: str) -> Iterator[Rung]:
    """The rungs of a machine in one way: COMPILED, INTERPRETED or CUDA."""
    for name, blames, kernel, own in _OF_MACHINE:
        options = {"dots": "ieee", **own, "device": device}
        word = f"{IN_CUDA if how == CUDA else IN_TRITON}:{kernel}"
        if kernel in ("flash", "lazy"):
            word = f"{kernel}-cuda" if how == CUDA else kernel
        if how == COMPILED or options["dots"] == "ieee":  # TF32 only compiled Triton has
            request = CheckRequest(word, None, None, options)
            yield Rung(name, request, blames=blames, how=how)


_SET = ("layout", "runs", "inputs", "repeat")
_PER_BATCH = {"seqlens", "cu_seqlens", "cu_seqlens_k"}
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", *_PER_BATCH}
# A multiple of the usual tiles, and the largest of these.
_TILE = 128
# What a case has only where it is asked for, or cannot be done without.
_OPTIONAL = {"bias", "alibi", "mask", "sinks", "keep", "seqlens", "cu_seqlens_q", "cu_seqlens_k"}


def refuse_set(request: CheckRequest) -> None:
    """Raises UsageFailure where an option contradicts the ladder."""
    for name in _SET:
        if name in request.options:
            given = command_line("", "", {name: request.options[name]}).split(maxsplit=1)[1]
            words = f"{given}: the rungs of doctor set it"
            raise UsageFailure(words, f"gradprobe check takes --{name}")


def target_rungs(request: CheckRequest, takes: TargetSignature | None) -> list[Rung]:
    """The rungs of a user's own kernel: heads, then lengths, then one tensor moved at a time, then the whole case.

    What is given on the command line is never exceeded, and a length that is given stays. No two are equal. Of a target
    that cannot be imported, which `takes` nothing, the only rung will tell that.
    """
    found = list[Rung]()
    lower = _lower_rungs(request.options, takes) if takes else ()
    whole = "the case of gradprobe check", "what no rung below covers", request.options
    for name, blames, options in (*lower, whole):
        if options not in [rung.request.options for rung in found]:
            found.append(Rung(name, replace(request, options=options), blames=blames))
    return found


def _lower_rungs(
    given: Mapping[str, Any], takes: TargetSignature
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    is_fixed, is_per_batch = (not its.isdisjoint(given) for its in (_LENGTHS, _PER_BATCH))
    batch, taus = given.get("batch", 2), str(given.get("tau", "")).split(",")
    heads = int(given.get("heads", max(2, given.get("kv_heads", 1), len(taus))))
    lower: dict[str, Any] = {"recover": False, "head_dim": 32, "runs": _PLAIN}
    lower |= {} if is_fixed else {"seqlen": _TILE}
    if takes.family == "lazy":  # the bias of every distance of a rung
        lower |= {"tau": "-0.5"} | ({"bias_window": 3 * _TILE} if "bias" in takes.names else {})
    lower |= {**given, "heads": heads, "batch": batch if is_per_batch else 1}
    single = {"heads": 1, "kv_heads": 1, "tau": taus[0] or "-0.5"}
    single = {**lower, **{name: word for name, word in single.items() if name in lower}}
    several, long = plural(heads, "head"), "" if is_fixed else f", {_TILE} long"
    yield f"1 head{long}", "formulas, masks, dots", single
    yield f"{several}{long}", "what tells heads apart", lower
    if not is_fixed:
        for length, blames in (3 * _TILE, "loops over tiles"), (161, "the end of a tile"):
            yield f"{several}, {length} long", blames, {**lower, "seqlen": length}
    needless = _OPTIONAL - takes.required - ({"bias"} if takes.family == "lazy" else set())
    # dO first: it comes from autograd, and nobody chose how it lies.
    for tensor in ("do", *(name for name in TENSORS if name in takes.names - needless - {"do"})):
        if not tensor.startswith(("seqlens", "cu_")):
            moved, run = title(tensor), [f"{tensor}=distinct-unit"]
            yield f"{several}, {moved} moved", f"strides of {moved}", {**lower, "runs": run}
    yield f"{several}, dO expanded", "a dO as from .sum()", {**lower, "runs": _EXPANDED}
    strides = {**lower, "runs": _APART}
    yield f"{several}, all moved, no unit stride", "last strides taken as 1", strides
    if batch > 1 and not is_per_batch:
        apart = {**lower, "runs": ["distinct-unit"], "batch": batch}
        yield f"{batch} batches, all moved", "what tells batches apart", apart
