"""Launches caught: a target is called on tensors of distinct strides, and its kernels are noted and not run."""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..frontends.triton.launches import constants_of, launching_through, one_configuration, storage_of, tensors_in
from ..inputs.draw import draw, outputs_of
from ..inputs.placement import spanned
from ..inputs.tensor_layouts import VECTOR, Inputs, place
from ..model.case import Case
from ..model.failures import Failure, Refusal
from ..model.intermediates import DERIVED
from ..processes.attributes import replaced
from ..runtime.run import run_target
from ..source.text import SourceLine
from ..source.triton_source import Function, read_once
from ..targets.find import Target

if TYPE_CHECKING:
    from torch import Tensor

# Sizes that differ, none with a prime factor of _BEYOND or more; then what many kernels ask for.
_SIZES: dict[str, Any] = {"batch": 2, "heads": 6, "kv_heads": 3, "seqlen_q": 20, "seqlen_k": 28}
_SIZES |= {"head_dim": 24, "head_dim_v": 40, "block_m": 16, "block_n": 16}
_ALIKE = _SIZES | {"kv_heads": 6, "seqlen_q": 28, "head_dim": 32, "head_dim_v": 32}
_ROUND = _ALIKE | dict.fromkeys(("seqlen_q", "seqlen_k"), 128) | dict.fromkeys(("head_dim", "head_dim_v"), 64)
_ROUND |= {"block_m": 32, "block_n": 32}
_PACKED = {"batch": 1, "seqlen_q": 28, "cu_seqlens_q": (0, 13, 28), "cu_seqlens_k": (0, 13, 28)}
_PLAIN: dict[str, Any] = dict.fromkeys(("window", "softcap", "mask", "seqlens", "cu_seqlens_q", "cu_seqlens_k"))
_PLAIN |= {"bias": False, "alibi": False, "sinks": False, "dropout": 0.0}
# No size of a case that is read here has a prime factor as large, so no product of sizes is such a stride.
_BEYOND = 64
# Elements before and behind each tensor.
_MARGIN = 128
# No tensor of more bytes is laid out so: large strides make large tensors of small ones.
_MOST = 1 << 26


@dataclass(frozen=True)
class HostLaunch:
    """One launch of a kernel."""

    name: str
    file: str
    function: Function | None = None
    """None of a CUDA kernel: those are not read."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What each parameter of a Triton kernel was given, or has by default."""
    spot: SourceLine | None = None
    """The host's line; None where no file has it."""

    @property
    def constants(self) -> frozenset[str]:
        """The parameters under tl.constexpr."""
        return constants_of(self.function.plain) if self.function is not None else frozenset()


@dataclass(frozen=True)
class Caught:
    """The launches of one call."""

    case: Case
    launches: tuple[HostLaunch, ...]
    inputs: Mapping[str, Tensor]
    """What the target was given, as it lay."""
    storages: Mapping[int, str] | None
    """The storages of what it returned, by address: which intermediate lies there; None where it failed before."""
    given: frozenset[int] = frozenset()
    """The strides that only one tensor can have."""

    @property
    def rank(self) -> tuple[bool, int]:
        """Whether the call ended, and how many inputs some kernel is given as they lie, and not a copy of them."""
        tensors = [tensor_in(value) for launch in self.launches for value in launch.arguments.values()]
        given = {storage_of(tensor) for tensor in tensors if tensor is not None}
        return self.storages is not None, sum(storage_of(tensor) in given for tensor in self.inputs.values())


def catch(target: Target, case: Case) -> Caught | None:
    """The launches of the richest problem that the target takes: of one in which the call ends, else fails late.

    None where it refuses all, or fails before its first launch.
    """
    best: Caught | None = None
    for problem in _problems(target, case):
        with contextlib.suppress(Failure):
            for layout in _layouts(target, problem):
                call = _caught(target, problem, *layout)
                if call is not None and (best is None or call.rank > best.rank):
                    best = call
                if best is not None and best.rank == (True, len(best.inputs)):
                    return best
        if best is not None and best.storages is not None:
            break
    return best


def _problems(target: Target, case: Case) -> Iterator[Case]:
    """Cases from the richest on; the last one is the case itself, on its values."""
    itself = replace(case, layouts=(), runs=(), repeat=1)
    base = replace(itself, inputs=None, pattern="normal", **_PLAIN)
    steps = [_ALIKE, _ROUND] if case.family == "lazy" else [_SIZES, _ALIKE, _ROUND]
    sizes = [step | _PACKED for step in steps[:-1]] if target.packs else steps
    plain: dict[str, Any] = {"bias": case.bias} if case.family == "lazy" else {}
    for options in (_rich(target, case), plain):
        yield from (_sized(base, each | options) for each in sizes)
    if case.dtype == "float32":  # which some take in no case
        yield _sized(base, _ROUND | plain | {"dtype": "float16"})
    yield itself


def _rich(target: Target, case: Case) -> dict[str, Any]:
    """Everything optional that brings a tensor, as far as the target has a parameter for it."""
    takes = target.takes
    if case.family == "lazy":
        return {"bias": "bias" in takes}
    found: dict[str, Any] = {name: name in takes for name in ("bias", "alibi", "sinks")}
    found |= {"bias_axes": "bhmn"} if case.bias_rank == 4 else {}
    found |= {"dropout": 0.25} if "keep" in takes else {}
    if "mask" in takes and case.mask_axes == "bn":
        found["mask"] = "padding"
    elif "mask" in takes:
        axes = case.mask_axes if {"m", "n"} <= set(case.mask_axes) else Case.mask_axes
        found |= {"mask": "random", "mask_axes": axes}
    return found


def _sized(case: Case, options: dict[str, Any]) -> Case:
    case = replace(case, **options)
    tau = None if case.tau is None else tuple((case.tau * case.heads)[: case.heads])
    return replace(case, tau=tau, scale=case.head_dim**-0.5, bias_window=13)


def values_of(target: Target, case: Case) -> dict[str, Tensor]:
    """Values of a case, contiguous, on its device. O, LSE and delta hold no more than numbers of their shapes."""
    import torch

    values = draw(case)
    for name in DERIVED:
        if name in target.takes:
            dtype = values["q"].dtype if name == "o" else torch.float32
            values[name] = torch.ones([case.size(axis) for axis in case.input_axes(name)], dtype=dtype)
    values = {name: value.to(case.device) for name, value in values.items()}
    return {**values, **outputs_of(case, target.outputs, values, 0.0)}


def _layouts(target: Target, case: Case) -> Iterator[tuple[Inputs, frozenset[int]]]:
    """The inputs as they may lie, and the strides that only one of them has."""
    values = values_of(target, case)
    # A wrapper may copy what has no last stride of 1, and the strides of a copy tell little.
    yield from filter(None, (_strange(values, unit=unit) for unit in (False, True)))
    yield place(values, (), shapes=case.shapes), frozenset()


def _strange(values: Mapping[str, Tensor], *, unit: bool) -> tuple[Inputs, frozenset[int]] | None:
    """The values in strides that no other tensor has, and those strides; None where one takes more than _MOST bytes.

    Args:
        unit: whether every last stride is 1, and the others are multiples of what vector loads need.
    """
    found: dict[str, Tensor] = {}
    given: set[int] = set()
    for name, value in values.items():
        strides, span = list[int](), 1
        for size in reversed(value.shape):
            stride = 1 if unit and not strides else _unused(span, VECTOR if unit else 1, given)
            strides.insert(0, stride)
            span = stride * max(size, 1)
        elements = 2 * _MARGIN + spanned(tuple(value.shape), tuple(strides))
        if elements * value.element_size() > _MOST:
            return None
        found[name] = value.new_zeros(elements).as_strided(value.shape, strides, _MARGIN).copy_(value)
        given.update(strides[:-1] if unit else strides)
    return Inputs("distinct-unit" if unit else "distinct", dict(values), found), frozenset(given)


def _unused(span: int, step: int, given: set[int]) -> int:
    """The next prime times a step beyond what inner axes span, of those that no tensor has."""
    numbers = count(max(span // step + 1, _BEYOND))
    primes = (step * n for n in numbers if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
    return next(number for number in primes if number not in given)


def _caught(target: Target, case: Case, inputs: Inputs, given: frozenset[int]) -> Caught | None:
    """What one call launched; None where it refused, or failed before."""
    launches: list[HostLaunch] = []
    storages: Mapping[int, str] | None = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = run_target(target, case, inputs, instrumentation=_noting(launches))
        if outcome.refused is not None:
            return None
        storages = outcome.storages
    except Refusal:
        return None
    except Failure:
        if not launches:
            return None
    return Caught(case, tuple(launches), inputs.tensors, storages, given)


@contextlib.contextmanager
def _noting(launches: list[HostLaunch]) -> Iterator[None]:
    """While open, kernels are not run, nor compiled: their launches are noted. Warnings of the target are not shown."""
    from ..frontends.cuda import Kernel

    def note(_: Any, kernel: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(OSError, SyntaxError):  # of what has no source
            launches.append(_launch(read_once(kernel), args, kwargs))

    def call(kernel: Kernel, grid: Any, block: Any, shared_bytes: int, /, *arguments: Any) -> None:
        launches.append(HostLaunch(kernel.plain_name, str(kernel.file)))

    with (
        warnings.catch_warnings(),
        launching_through(note),
        replaced(Kernel, "__call__", call),
        one_configuration([], {}),
    ):
        warnings.showwarning = lambda *_, **__: None
        yield


def _launch(function: Function, positional: tuple[Any, ...], words: Mapping[str, Any]) -> HostLaunch:
    specs = inspect.signature(function.plain).parameters
    given = {name: spec.default for name, spec in specs.items() if spec.default is not inspect.Parameter.empty}
    given |= dict(zip(specs, positional, strict=False))
    given |= {name: value for name, value in words.items() if name in specs}  # without num_warps and the like
    return HostLaunch(function.name, function.file, function, given, _host_line())


def _host_line() -> SourceLine | None:
    """The line of the innermost Python that belongs neither to Triton, nor to torch, nor to this tool."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_host(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:
        return None
    name, line = frame.f_code.co_filename, frame.f_lineno
    linecache.checkcache(name)
    code = linecache.getline(name, line).strip()
    return SourceLine(str(Path(name).resolve()), line, code, 0, len(code), frame.f_code.co_name) if code else None


def _is_host(module: str) -> bool:
    is_of_a_target = module.startswith(("gradprobe.kernels", "gradprobe.targets"))
    return is_of_a_target or module.partition(".")[0] not in ("triton", "torch", "gradprobe", "contextlib")


def tensor_in(value: Any) -> Tensor | None:
    """The tensor that an argument is, or that a descriptor describes."""
    return None if isinstance(value, tuple) else next((tensor for _, tensor, _ in tensors_in(value)), None)
