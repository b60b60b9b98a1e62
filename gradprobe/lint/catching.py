"""Problems to catch launches in: the richest that a target may take, then plainer ones."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..inputs.draw import draw, outputs_of
from ..inputs.placement import spanned
from ..inputs.tensor_layouts import VECTOR, Inputs, place
from ..model.case import Case
from ..model.failures import Failure, NoRoom, Refusal
from ..model.intermediates import DERIVED
from ..runtime.launches import launching_through, one_configuration, storage_of
from ..runtime.run import run_target
from ..targets.find import Target
from ..targets.surroundings import replaced
from .launch_arguments import HostLaunch, cuda_launch, launch_of, tensor_in

if TYPE_CHECKING:
    from torch import Tensor

# Sizes that differ, none with a prime factor of strides.BEYOND or more; then what many kernels ask for.
_SIZES: dict[str, Any] = {"batch": 2, "heads": 6, "kv_heads": 3, "seqlen_q": 20, "seqlen_k": 28}
_SIZES |= {"head_dim": 24, "head_dim_v": 40, "block_m": 16, "block_n": 16}
_LENGTHS_ALIKE = {"seqlen_q": 28}
_DIMS_ALIKE = {"head_dim": 32, "head_dim_v": 32}
_ROUND = {"seqlen_q": 128, "seqlen_k": 128, "head_dim": 64, "head_dim_v": 64, "block_m": 32, "block_n": 32}
_PLAIN: dict[str, Any] = dict.fromkeys(("window", "softcap", "mask", "seqlens", "cu_seqlens_q", "cu_seqlens_k"))
_PLAIN |= {"bias": False, "alibi": False, "sinks": False, "dropout": 0.0}


def problems(target: Target, case: Case) -> Iterator[Case]:
    """Cases from the richest on; the last one is the case itself, on its values."""
    base = replace(case, inputs=None, layouts=(), runs=(), repeat=1, pattern="normal", **_PLAIN)
    takes, plain, equal_heads = target.takes, {"bias": case.bias} if case.family == "lazy" else {}, {"kv_heads": 6}
    # Everything optional that brings a tensor, as far as the target has a parameter for it.
    rich: dict[str, Any] = {"bias": "bias" in takes}
    if case.family == "lazy":
        steps: list[dict[str, Any]] = [_SIZES | equal_heads | _LENGTHS_ALIKE | {"head_dim_v": 24}]
        steps.append(steps[0] | _DIMS_ALIKE | _ROUND)
    else:
        rich |= {"alibi": "alibi" in takes, "sinks": "sinks" in takes}
        rich |= {"bias_axes": "bhmn"} if case.bias_rank == 4 else {}
        rich |= (_mask_like(case) if "mask" in takes else {}) | ({"dropout": 0.25} if "keep" in takes else {})
        steps = [_SIZES, _SIZES | equal_heads, _SIZES | _LENGTHS_ALIKE, _SIZES | _LENGTHS_ALIKE | _DIMS_ALIKE]
        steps += [steps[-1] | equal_heads, _SIZES | _DIMS_ALIKE | _ROUND | equal_heads]
    if target.packs:
        packed = {"batch": 1, "seqlen_q": 28, "cu_seqlens_q": (0, 13, 28), "cu_seqlens_k": (0, 13, 28)}
        steps = [sizes | packed for sizes in steps[:-1]]
    for options in [rich, plain] if rich != plain else [plain]:
        for sizes in steps:
            yield _sized(base, sizes | options)
    if case.dtype == "float32":  # which many take in no case
        yield from (_sized(base, sizes | plain | {"dtype": "float16"}) for sizes in steps[-2:])
    yield replace(case, layouts=(), runs=(), repeat=1)


def _mask_like(case: Case) -> dict[str, Any]:
    """A mask of the axes of the case's own, as far as one of those can be drawn."""
    if case.mask_axes == "bn":
        return {"mask": "padding"}
    return {"mask": "random", "mask_axes": case.mask_axes if {"m", "n"} <= set(case.mask_axes) else Case.mask_axes}


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


def _sized(case: Case, options: dict[str, Any]) -> Case:
    case = replace(case, **options)
    tau = None if case.tau is None else tuple((case.tau * case.heads)[: case.heads])
    return replace(case, tau=tau, scale=case.head_dim**-0.5, bias_window=13)


# No size of a case that is read here has a prime factor as large, so no product of sizes is such a stride.
BEYOND = 64
# Elements before and behind each tensor.
_MARGIN = 128
# No tensor of more bytes is laid out so: large strides make large tensors of small ones.
MOST = 1 << 26


class StrangeStrides:
    """Gives out strides, and remembers which it gave."""

    def __init__(self, *, unit: bool) -> None:
        """`unit`: whether every last stride is 1, and the others are multiples of what vector loads need."""
        self._unit = unit
        self.given: set[int] = set()

    def placed(self, values: Mapping[str, Tensor]) -> Inputs:
        """The values, each tensor with strides that no other has.

        Raises:
            NoRoom: one takes more than MOST bytes.
        """
        name = "distinct-unit" if self._unit else "distinct"
        return Inputs(name, dict(values), {key: self._laid(value) for key, value in values.items()})

    def _laid(self, value: Tensor) -> Tensor:
        shape, strides, span = tuple(value.shape), list[int](), 1
        for axis in reversed(range(len(shape))):
            is_unit = self._unit and axis == len(shape) - 1
            strides.insert(0, 1 if is_unit else self._next(span))
            span = strides[0] * max(shape[axis], 1)
        size = 2 * _MARGIN + spanned(shape, tuple(strides))
        if size * value.element_size() > MOST:
            raise NoRoom(f"a tensor of {shape} with strides {tuple(strides)} takes more than {MOST >> 20} MiB")
        return value.new_zeros(size).as_strided(shape, strides, _MARGIN).copy_(value)

    def _next(self, span: int) -> int:
        step = VECTOR if self._unit else 1
        first = max(span // step + 1, BEYOND)
        primes = (n for n in count(first) if all(n % factor for factor in range(2, math.isqrt(n) + 1)))
        found = next(step * prime for prime in primes if step * prime not in self.given)
        self.given.add(found)
        return found


@dataclass(frozen=True)
class Caught:
    """The launches of one call."""

    case: Case
    launches: tuple[HostLaunch, ...]
    inputs: Mapping[str, Tensor]
    """What the target was given, as it lay."""
    storages: Mapping[int, str] = field(default_factory=dict)
    """The storages of what it returned, by address: which intermediate lies there."""
    given: frozenset[int] = frozenset()
    """The strides that only one tensor can have."""

    @property
    def reaching(self) -> int:
        """How many inputs some kernel is given as they lie, and not a copy of them."""
        tensors = (tensor_in(value) for launch in self.launches for value in launch.arguments.values())
        given = {storage_of(tensor) for tensor in tensors if tensor is not None}
        return sum(storage_of(tensor) in given for tensor in self.inputs.values())


def catch(target: Target, case: Case) -> list[Caught]:
    """The launches of the richest problem that the target takes, and of the same with padded sequences.

    A problem is sought in which the call ends; if there is none, one is enough in which it fails after its launches, as
    where it reads what they would have written. Empty where it refuses all, or fails before.
    """
    for ends in (True, False):
        for problem in problems(target, case):
            found = _in_some_layout(target, problem, ends=ends)
            if found is not None:
                # Sequences of two lengths need as many keys as rows.
                length, lengths = problem.seqlen_q, tuple(problem.seqlen_q - 3 * at for at in range(problem.batch))
                padded = replace(problem, seqlen_k=length, seqlens=lengths)
                more = _in_some_layout(target, padded, ends=ends) if "seqlens" in target.takes else None
                return [found] if more is None else [found, more]
    return []


def _in_some_layout(target: Target, case: Case, *, ends: bool) -> Caught | None:
    """The call in which most inputs reach kernels as they lie, of distinct strides for every tensor, then with last
    strides of 1, then contiguous; of several the first.

    None where the target does not even take the case with contiguous tensors.

    Args:
        ends: whether the call must come to its end; one that is refused never counts.
    """
    try:
        values = values_of(target, case)
        plain = _caught(target, case, place(values, (), shapes=case.shapes), ends=ends)
    except Failure:
        return None
    if plain is None or not plain.launches:
        return plain
    found: list[Caught] = []
    for unit in (False, True):
        strange = StrangeStrides(unit=unit)
        with contextlib.suppress(NoRoom):
            inputs = strange.placed(values)
            if (caught := _caught(target, case, inputs, strange.given, ends=ends)) is not None:
                found.append(caught)
        # A wrapper may copy what has no last stride of 1, and the strides of a copy tell little.
        if found and found[-1].reaching >= plain.reaching:
            return found[-1]
    return max(found, key=lambda each: each.reaching, default=plain)


def _caught(target: Target, case: Case, inputs: Inputs, given: Collection[int] = (), *, ends: bool) -> Caught | None:
    """What one call launched; None where it failed or refused."""
    launches: list[HostLaunch] = []
    storages: Mapping[int, str] = {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = run_target(target, case, inputs, instrumentation=_noting(launches))
        if outcome.refused is not None:
            return None
        storages = outcome.storages
    except Failure as failure:
        if ends or not launches or isinstance(failure, Refusal):
            return None
    return Caught(case, tuple(launches), inputs.tensors, storages, frozenset(given))


@contextlib.contextmanager
def _noting(launches: list[HostLaunch]) -> Iterator[None]:
    """While open, kernels are not run, nor compiled: their launches are noted. Warnings of the target are not shown."""
    from ..cuda.module import Kernel

    def note(_: Any, kernel: Any, *args: Any, **kwargs: Any) -> None:
        if (launch := launch_of(kernel, args, kwargs)) is not None:
            launches.append(launch)

    def call(kernel: Kernel, grid: Any, block: Any, shared_bytes: int, /, *arguments: Any) -> None:
        kernel.entry.check(arguments)
        launches.append(cuda_launch(kernel.entry, arguments))

    with (
        warnings.catch_warnings(),
        launching_through(note),
        replaced(Kernel, "__call__", call),
        one_configuration([], {}),
    ):
        warnings.showwarning = lambda *_, **__: None
        yield
