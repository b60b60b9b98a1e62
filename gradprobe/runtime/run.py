"""Runs a target on inputs. The Outcome holds its Trace, or the words with which it refused the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..frontends import CUDA, CUDA_ON_CPU, Launches, launches
from ..frontends.triton import gpu_stood_in
from ..frontends.triton.launches import KernelCall, storage_of
from ..inputs.tensor_layouts import Inputs
from ..model.assignment import taken
from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.intermediates import GRADIENT_OF, lookup
from ..model.memory_finding import MemoryFinding
from ..targets.bind import as_tensors, bind, by_name
from ..targets.find import Target
from ..targets.naming import LoadedSource, source_of
from ..targets.surroundings import kept_warnings, warned_once
from .target_memory import shared
from .trace import Trace, as_in_memory, read_trace, straightened

if TYPE_CHECKING:
    from torch import Tensor

    from .arithmetic import Dots


@dataclass(frozen=True)
class Outcome:
    trace: Trace | None
    refused: str | None
    """Its words where it refused the layout, and has no trace."""
    kernels: tuple[LoadedSource, ...]
    backends: frozenset[str]
    """What ran its kernels, of BACKENDS."""
    taken: frozenset[str]
    """The inputs that kernels were given in place, and not only as copies."""
    notes: tuple[str, ...] = ()
    storages: Mapping[int, str] = field(default_factory=dict)
    """By the address of a storage, the intermediate that was returned in it."""
    findings: tuple[MemoryFinding, ...] = ()
    warned: tuple[str, ...] = ()
    calls: tuple[KernelCall, ...] = ()
    dots: tuple[Dots, ...] = ()


def run_target(
    target: Target,
    case: Case,
    inputs: Inputs,
    instrumentation: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
    found: Launches | None = None,
) -> Outcome:
    """Runs the target once. One that raises on purpose has refused the layout, unless that is its own or contiguous.

    Args:
        instrumentation: entered around the target's own code alone.
        found: how kernels are launched, and what gets to know of them.

    Raises:
        UsageFailure, Refusal, DeviceLost, TargetFailure
    """
    arguments = bind(target, case, inputs.tensors)
    found = found or Launches(inputs.tensors)
    dots: list[Dots] = []
    refused, result = None, None
    with launches(found):
        try:
            with instrumentation, gpu_stood_in(as_cuda=case.as_cuda):
                result = _call(target, case, arguments, inputs, dots)
                if inputs.tensors[
                    "q"
                ].is_cuda:  # an error of an asynchronous kernel is the target's
                    import torch

                    torch.cuda.synchronize()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            from .target_errors import refusal_of

            refused = refusal_of(error, target, inputs.layout, _calls(found))
    launched = _launched(found, inputs)
    if refused is not None:
        return Outcome(None, refused, *launched)
    trace, results = _read(result, target, case, inputs, found.notes)
    if case.device != "cpu":
        from .arithmetic import dots_of_launches

        dots = dots_of_launches(found, dots)
    return Outcome(
        trace,
        None,
        *launched,
        notes=tuple(dict.fromkeys(found.notes)),
        storages={
            storage_of(tensor): str(name) for name, tensor in results.items() if tensor is not None
        },
        findings=(*found.findings, *shared(results, target, case, inputs)),
        warned=kept_warnings(),
        calls=tuple(_calls(found)),
        dots=tuple(dots),
    )


def _calls(found: Launches) -> list[KernelCall]:
    return [launch.call for launch in found.started if launch.call is not None]


def _launched(
    found: Launches, inputs: Inputs
) -> tuple[tuple[LoadedSource, ...], frozenset[str], frozenset[str]]:
    """The kernels, what ran them, and the inputs that they were given in place."""
    kernels, backends, given = dict[Any, LoadedSource](), set[str](), set[int]()
    for launch in found.started:
        entry = launch.entry
        backends.add(launch.backend)
        given.update(launch.storages)  # copies have storages of their own
        if launch.backend in (CUDA, CUDA_ON_CPU):
            kernels[entry] = LoadedSource(
                entry.name, str(entry.source.path), entry.function.line, entry.source.sha256
            )
        elif entry not in kernels:
            kernels[entry] = source_of(entry)
    in_place = [name for name, tensor in inputs.tensors.items() if storage_of(tensor) in given]
    return tuple(kernels.values()), frozenset(backends), frozenset(in_place)


def _call(
    target: Target, case: Case, arguments: dict[str, Any], inputs: Inputs, dots: list[Dots]
) -> object:
    import numpy as np

    products: AbstractContextManager[None] = nullcontext()
    if inputs.tensors["q"].is_cuda:
        from .arithmetic import matmuls_watched

        products = matmuls_watched(dots)
    with warned_once(), np.errstate(all="ignore"), target.surroundings.inside(), products:
        if target.is_backward:
            result = target.function(**arguments)
            return (
                tuple(result) if isinstance(result, Iterator) else result
            )  # a generator runs when it is read
        return _through_autograd(target, case, arguments, inputs.tensors["do"], dots)


def _read(
    result: Any, target: Target, case: Case, inputs: Inputs, notes: list[str]
) -> tuple[Trace, Mapping[str, Any]]:
    subject = f"target {target.name!r}"
    outputs = {name: inputs.tensors[name] for name in target.outputs if name in inputs.tensors}
    result = as_tensors(result) if target.is_backward else result
    if isinstance(result, (tuple, list)) and (by_names := by_name(target.function, result)):
        result, note = by_names
        notes.append(note)
    named = dict[str, Any]()
    if isinstance(result, Mapping):
        named = {
            name: as_in_memory(value, f"{subject} returned {name}")
            for name, value in result.items()
        }
        result = named
    return read_trace(result, case, subject, outputs), named


def _through_autograd(
    target: Target, case: Case, arguments: dict[str, Any], do: Tensor, dots: list[Dots]
) -> Mapping[str, Any]:
    """A forward's gradients for the case's dO, and the intermediates that it returned."""
    import torch

    leaves = dict[str, torch.Tensor]()
    for name, own in target.takes.items():
        is_mask = name == "bias" and not case.bias  # in whose place a mask may stand
        if (
            name in GRADIENT_OF
            and own in arguments
            and not is_mask
            and arguments[own].is_floating_point()
        ):
            arguments[own] = leaves[name] = arguments[own].detach().requires_grad_()
    exposed = _of_forward(target.function(**arguments), target)
    output = exposed["O"]
    straightened(output, "O", case, f"target {target.name!r}")
    if not output.requires_grad:
        raise TargetFailure(
            f"target {target.name!r} is not differentiable: its output does not require grad",
            "a forward is differentiated through autograd; a backward takes a parameter `do`",
        )
    if output.is_cuda:
        from .arithmetic import of_autograd

        dots += of_autograd(output)
    do = taken(do, "do", case.shapes)
    # Given dO itself, autograd would import sympy: a second. Hooks of the target's own on its output come after.
    shown = output.view_as(output)
    shown.register_hook(lambda gradient: do.to(gradient.dtype))
    found: Any = torch.autograd.grad(shown.sum(), list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        # To autograd, a gradient that never comes is 0. For bias and sinks, None says that a forward does not
        # differentiate them, which is common.
        is_zero = gradient is None and name in ("q", "k", "v")
        exposed[GRADIENT_OF[name]] = torch.zeros_like(leaf) if is_zero else gradient
    return exposed


def _of_forward(result: object, target: Target) -> dict[str, Any]:
    """O and, where a forward returned a dict, the other intermediates in it."""
    import torch

    first = result[0] if isinstance(result, (tuple, list)) and result else result
    exposed = dict(result) if isinstance(result, Mapping) else {"O": first}
    named = [key for key in exposed if (row := lookup(str(key))) is not None and row.name == "O"]
    output = exposed.pop(named[0]) if len(named) == 1 else None
    if isinstance(output, torch.Tensor):
        return {"O": output} | exposed
    got = (
        f"a dict of {', '.join(map(str, result))}"
        if isinstance(result, Mapping)
        else type(first).__name__
    )
    raise TargetFailure(
        f"target {target.name!r} takes no dO, so it is a forward and must return its output tensor, got {got}",
        "return O, or (O, ...), or {'O': o, 'LSE': lse}; or take a parameter `do`, as a backward does",
    )
