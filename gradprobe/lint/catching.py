"""Caught: the launches of one call of a target, with their arguments, most often without running a kernel."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..cases.case import Case
from ..cases.layouts import place
from ..failures import Failure
from ..running.launches import kernel_types
from ..running.run import run_target
from ..targets.find import Target
from .host import host_frame, site_of
from .launch import Launch, bound, constants_of
from .problems import padded, problems, values_of
from .source import function_of
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


def catch(target: Target, case: Case) -> list[Caught]:
    """The launches of the richest problem that the target takes, and of the same with padded sequences.

    Kernels are run only where the target takes no problem without. Empty where it launches nothing or refuses all.
    """
    for problem in problems(target, case):
        found = _in_some_layout(target, problem, runs=False)
        if found is not None:
            more = _in_some_layout(target, padded(problem), runs=False) if "seqlens" in target.takes else None
            return [each for each in (found, more) if each is not None and each.launches]
    found = _in_some_layout(target, case, runs=True)
    return [found] if found is not None and found.launches else []


def _in_some_layout(target: Target, case: Case, *, runs: bool) -> Caught | None:
    """The first call that ends: with distinct strides for every tensor, with last strides of 1, contiguous.

    None where the target does not even take the case with contiguous tensors.
    """
    try:
        values = values_of(target, case)
    except Failure:
        return None
    plain = _attempt(target, case, values, None, allocating=False, runs=runs)
    if plain is None or not plain.launches:
        return plain
    ways = [(False, True), (False, False), (True, True), (True, False)]
    attempts = (_attempt(target, case, values, unit, allocating=allocating, runs=runs) for unit, allocating in ways)
    return next((found for found in attempts if found is not None), plain)


def _attempt(
    target: Target, case: Case, values: Mapping[str, Tensor], unit: bool | None, *, allocating: bool, runs: bool
) -> Caught | None:
    """What one call launched; None where it failed or refused.

    Args:
        unit: None lays every tensor contiguous; else as of `Strange`.
        allocating: whether what the target allocates is laid out too.
        runs: whether kernels are run.
    """
    strange = Strange(unit=bool(unit))
    try:
        inputs = place(values, ()) if unit is None else strange.placed(values)
        launches: list[Launch] = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            around = _caught(launches, strange if allocating else None, runs=runs)
            outcome = run_target(target, case, inputs, around=around)
    except Failure:
        return None
    if outcome.refused is not None:
        return None
    return Caught(case, tuple(launches), inputs.tensors, outcome.storages, frozenset(strange.given))


@contextlib.contextmanager
def _caught(launches: list[Launch], strange: Strange | None, *, runs: bool) -> Iterator[None]:
    """While open, launches are noted; and run only where that is said."""
    kinds = kernel_types()
    originals = [kind.run for kind in kinds]
    for kind, original in zip(kinds, originals, strict=True):
        kind.run = _noting(launches, original if runs else None)
    try:
        with _one_configuration(), strange.allocating() if strange else contextlib.nullcontext():
            yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.run = original


def _noting(launches: list[Launch], original: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = _launch(self, args, kwargs)
        if launch is not None:
            launches.append(launch)
        return original(self, *args, **kwargs) if original is not None else None

    return run


def _launch(jit: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Launch | None:
    frame = host_frame()
    try:
        function = function_of(jit)
    except (OSError, SyntaxError):
        return None
    site = site_of(frame, len(args)) if frame is not None else None
    return Launch(function, bound(jit, args, kwargs), constants_of(jit), site)


@contextlib.contextmanager
def _one_configuration() -> Iterator[None]:
    """While open, a kernel that is autotuned takes its first configuration, and nothing is timed."""
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        yield
        return
    original = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        words = self.configs[0].all_kwargs() if self.configs else {}
        return self.fn.run(*args, **{**words, **kwargs})

    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = original
