"""Caught: the launches of one call of a target, with their arguments, most often without running a kernel."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..cases.case import Case
from ..cases.layouts import place
from ..failures import Failure, NoRoom, Refusal
from ..running.configurations import one_configuration
from ..running.launches import launching_through
from ..running.run import run_target
from ..running.taps.functions import read_once
from ..targets.find import Target
from .cuda import kernel_of
from .host import host_frame, line_of, site_of
from .launch import Launch, bound, constants_of
from .problems import padded, problems, values_of
from .strides import Strange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Caught:
    """The launches of one call."""

    case: Case
    launches: tuple[Launch, ...]
    inputs: Mapping[str, Tensor]
    """What the target was given, as it lay."""
    storages: Mapping[int, str] = field(default_factory=dict)
    """The storages of what it returned, by address: which intermediate lies there."""
    given: frozenset[int] = frozenset()
    """The strides that only one tensor (or all of one shape) can have."""
    ordinary: Caught | None = None
    """The same call where what the target allocates lies as it asked for."""


def catch(target: Target, case: Case) -> list[Caught]:
    """The launches of the richest problem that the target takes, and of the same with padded sequences.

    A problem is sought in which the call ends. If there is none, one is enough in which it fails after its launches. If
    there is none of these either, the kernels are run. Empty where it launches nothing or refuses all.
    """
    for way in (_Way(), _Way(ends=False)):
        for problem in problems(target, case):
            found = _in_some_layout(target, problem, way)
            if found is not None:
                more = _in_some_layout(target, padded(problem), way) if "seqlens" in target.takes else None
                return [each for each in (found, more) if each is not None and each.launches]
    found = _in_some_layout(target, case, _Way(runs=True))
    return [found] if found is not None and found.launches else []


@dataclass(frozen=True)
class _Way:
    """How a call is made."""

    unit: bool | None = None
    """Whether last strides are 1, as of `Strange`; None lays every tensor contiguous."""
    allocating: bool = False
    """Whether what the target allocates is laid out too."""
    ends: bool = True
    """Whether the call must come to its end; one that is refused never counts."""
    runs: bool = False
    """Whether kernels are run."""


def _in_some_layout(target: Target, case: Case, way: _Way) -> Caught | None:
    """The first call that counts: with distinct strides for every tensor, with last strides of 1, contiguous.

    None where the target does not even take the case with contiguous tensors.
    """
    try:
        values = values_of(target, case)
    except Failure:
        return None
    plain = _attempt(target, case, values, way)
    if plain is None or not plain.launches:
        return plain
    for unit in (False, True):
        ordinary = _attempt(target, case, values, replace(way, unit=unit))
        strange = None if way.runs else _attempt(target, case, values, replace(way, unit=unit, allocating=True))
        if ordinary is not None:
            return ordinary if strange is None else replace(strange, ordinary=ordinary)
    return plain


def _attempt(target: Target, case: Case, values: Mapping[str, Tensor], way: _Way) -> Caught | None:
    """What one call launched; None where it failed or refused.

    Only addresses count where no kernel runs. Where memory is short, torch's fake tensors take its place: they have
    shapes and strides and no values. They are the second choice, because torch takes two seconds to load them.
    """
    try:
        return _attempted(target, case, values, way, Strange(unit=bool(way.unit)), contextlib.nullcontext())
    except NoRoom:
        if way.runs:
            return None
    from torch._subclasses import FakeTensorMode

    fake = FakeTensorMode()
    values = {name: fake.from_tensor(value) for name, value in values.items()}
    return _attempted(target, case, values, way, Strange(unit=bool(way.unit), bounded=False), fake)


def _attempted(
    target: Target,
    case: Case,
    values: Mapping[str, Tensor],
    way: _Way,
    strange: Strange,
    mode: AbstractContextManager[Any],
) -> Caught | None:
    launches: list[Launch] = []
    storages: Mapping[int, str] = {}
    try:
        with mode:
            inputs = place(values, (), shapes=case.shapes) if way.unit is None else strange.placed(values)
        with contextlib.redirect_stdout(io.StringIO()), mode:
            outcome = run_target(target, case, inputs, around=_caught(launches, strange, way))
        if outcome.refused is not None:
            return None
        storages = outcome.storages
    except NoRoom:
        raise
    except Failure as failure:
        if way.ends or not launches or isinstance(failure, Refusal):
            return None
    return Caught(case, tuple(launches), inputs.tensors, storages, frozenset(strange.given))


@contextlib.contextmanager
def _caught(launches: list[Launch], strange: Strange, way: _Way) -> Iterator[None]:
    """While open, launches are noted, and run only if `way` says so. Warnings of the target are not shown here."""

    def note(run: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launch = _launch(kernel, args, kwargs)
        launches.extend([launch] if launch is not None else [])
        return run(kernel, *args, **kwargs) if way.runs else None

    told = warnings.showwarning
    warnings.showwarning = lambda *_, **__: None
    allocating = strange.allocating() if way.allocating else contextlib.nullcontext()
    try:
        with launching_through(note), _cuda(launches, way), one_configuration([], {}), allocating:
            yield
    finally:
        warnings.showwarning = told


def _launch(jit: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Launch | None:
    frame = host_frame()
    try:
        function = read_once(jit)
    except (OSError, SyntaxError):
        return None
    site = site_of(frame, len(args)) if frame is not None else None
    return Launch(function, bound(jit, args, kwargs), constants_of(jit), site)


@contextlib.contextmanager
def _cuda(launches: list[Launch], way: _Way) -> Iterator[None]:
    """The same for CUDA kernels. Those that are not run are not compiled either."""
    from ..cuda.module import Kernel

    original = Kernel.__call__

    def call(self: Kernel, grid: Any, block: Any, shared_bytes: int, /, *arguments: Any) -> None:
        self.entry.check(arguments)
        kernel, frame = kernel_of(self.entry), host_frame()
        given = dict(zip(kernel.parameters, arguments, strict=True))
        launches.append(Launch(kernel, given, frozenset(), line_of(frame) if frame is not None else None))
        if way.runs:
            original(self, grid, block, shared_bytes, *arguments)

    Kernel.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        Kernel.__call__ = original  # type: ignore[method-assign]
