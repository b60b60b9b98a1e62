"""Launches caught: a target is called on tensors of strides of their own, and its kernels are noted and not run."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..frontends.triton.launches import constants_of, launching_through, one_configuration, storage_of, tensors_in
from ..inputs.draw import draw, outputs_of
from ..inputs.placement import spanned
from ..inputs.tensor_layouts import VECTOR, Inputs, place
from ..model.case import Case
from ..model.failures import Failure, Refusal
from ..model.intermediates import DERIVED
from ..processes.attributes import replaced
from ..runtime.allocations import asked_at
from ..runtime.run import run_target
from ..source.text import SourceLine, python_file
from ..source.triton_source import Function, read_function
from ..targets.find import Target

if TYPE_CHECKING:
    from torch import Tensor

# What many kernels ask for.
_SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 4, "block_m": 32, "block_n": 32}
_SIZES |= {"seqlen_q": 64, "seqlen_k": 64, "head_dim": 32, "head_dim_v": 32, "scale": 32**-0.5, "bias_window": 13}
_PLAIN: dict[str, Any] = dict.fromkeys(("window", "softcap", "mask", "seqlens", "cu_seqlens_q", "cu_seqlens_k"))
_PLAIN |= {"inputs": None, "pattern": "normal"}
_PACKED = {"batch": 1, "seqlen_q": 28, "seqlen_k": 28, "cu_seqlens_q": (0, 13, 28), "cu_seqlens_k": (0, 13, 28)}
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
        given = set[int]()
        for launch in self.launches:
            given.update(
                storage_of(tensor) for tensor in map(tensor_in, launch.arguments.values()) if tensor is not None
            )
        return self.storages is not None, sum(storage_of(tensor) in given for tensor in self.inputs.values())


def catch(target: Target, case: Case) -> Caught | None:
    """The launches of the richest problem that the target takes: of one in which the call ends, else fails late.

    None where it refuses all, or fails before its first launch.
    """
    calls = list[Caught]()
    for problem in _problems(target, case):
        with contextlib.suppress(Failure):
            for inputs, given in _layouts(target, problem):
                call = _caught(target, problem, inputs, given)
                calls += [call] if call is not None else []
        if any(call.storages is not None for call in calls):
            break
    return max(calls, key=lambda call: call.rank, default=None)


def _problems(target: Target, case: Case) -> Iterator[Case]:
    """A small case of all tensors that a target takes, and the case itself."""
    itself = replace(case, layouts=(), runs=(), repeat=1)
    options = _PLAIN | _SIZES | (_PACKED if target.packs else {})
    options |= {name: name in target.takes for name in ("bias", "alibi", "sinks")}
    options["dropout"] = 0.25 if "keep" in target.takes else 0.0
    if "mask" in target.takes:
        options["mask"] = "padding" if case.mask_axes == "bn" else "random"
    if case.tau is not None:
        options["tau"] = case.tau[:1] * _SIZES["heads"]
    yield replace(itself, **options)
    yield itself


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
    for unit in (False, True):
        given: set[int] = set()
        tensors: dict[str, Tensor] = {}
        for name, value in values.items():
            strides = _strides_of_its_own(tuple(value.shape), given, unit=unit)
            elements = 2 * _MARGIN + spanned(tuple(value.shape), strides)
            if elements * value.element_size() > _MOST:
                break
            tensors[name] = value.new_zeros(elements).as_strided(value.shape, strides, _MARGIN).copy_(value)
        else:
            yield Inputs("distinct-unit" if unit else "distinct", values, tensors), frozenset(given)
    yield place(values, (), shapes=case.shapes), frozenset()


def _strides_of_its_own(shape: tuple[int, ...], given: set[int], *, unit: bool) -> tuple[int, ...]:
    """Strides that no other tensor has, which are added to those given: primes, larger than any size.

    No product of sizes is such a stride. `unit`: but the last one is 1, and the others are as many vectors.
    """
    strides, span, step = [1] * len(shape), 1, VECTOR if unit else 1
    for axis in reversed(range(len(shape))):
        if not unit or axis < len(shape) - 1:
            primes = filter(_is_prime, count(max(span // step, VECTOR, *shape) + 1))
            strides[axis] = next(step * prime for prime in primes if step * prime not in given)
            given.add(strides[axis])
        span = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


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
            function = read_function(kernel)
            given = function.defaults | dict(zip(function.parameters, args, strict=False))
            # Without num_warps and the like.
            given |= {name: value for name, value in kwargs.items() if name in function.parameters}
            launches.append(HostLaunch(function.name, function.file, function, given, _host_line()))

    def call(kernel: Kernel, grid: Any, block: Any, shared_bytes: int, /, *arguments: Any) -> None:
        launches.append(HostLaunch(kernel.plain_name, str(kernel.file)))

    silenced = warnings.catch_warnings(action="ignore")
    through, cuda = launching_through(note), replaced(Kernel, "__call__", call)
    with silenced, through, cuda, one_configuration([]):
        yield


def _host_line() -> SourceLine | None:
    file, line = asked_at()
    lines = python_file(file).lines if file else []
    return SourceLine(file, line, lines[line - 1].strip()) if line <= len(lines) else None


def tensor_in(value: Any) -> Tensor | None:
    """The tensor that an argument is, or that a descriptor describes."""
    return None if isinstance(value, tuple) else next((tensor for _, tensor, _ in tensors_in(value)), None)
