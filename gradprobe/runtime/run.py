"""Runs a target on inputs. The Outcome holds its Trace, or the words with which it refused the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..frontends import Launches, launches
from ..frontends.interface import CUDA, CUDA_ON_CPU, TORCH
from ..frontends.triton import interpreting
from ..frontends.triton.launches import (
    KernelCall,
    one_configuration,
    storage_of,
    whole_tracebacks,
)
from ..frontends.triton.stand_in import gpu_stood_in
from ..inputs.memory import Unwritten
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
from .arithmetic import Dots, dots_of_kernels, matmuls_watched, of_autograd
from .changes import shared
from .trace import Trace, as_in_memory, read_trace, straightened

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a target."""

    trace: Trace | None
    """None where the target refused the layout."""
    refused: str | None
    """Its words where it refused the layout."""
    kernels: tuple[LoadedSource, ...]
    """The kernels that it launched, in order of their first launch."""
    backends: frozenset[str]
    """What ran them, of BACKENDS; TORCH where nothing did."""
    taken: frozenset[str]
    """The inputs that kernels were given in place, and not only as copies."""
    notes: tuple[str, ...] = ()
    """What a reader should know of how it was run and read."""
    storages: Mapping[int, str] = field(default_factory=dict)
    """The address of each storage that the target returned, and the intermediate that lies there."""
    findings: tuple[MemoryFinding, ...] = ()
    """What CUDA kernels on the CPU did to memory, and gradients that share memory with what they must not."""
    warned: tuple[str, ...] = ()
    """What the target warned of, in this run or before."""
    calls: tuple[KernelCall, ...] = ()
    """The launches of Triton kernels, in order."""
    dots: tuple[Dots, ...] = ()
    """How float32 was multiplied on a GPU, as far as that could be read."""


def run_target(
    target: Target,
    case: Case,
    inputs: Inputs,
    instrumentation: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
    *,
    schedule: int = 0,
    unwritten: Unwritten | None = None,
    launched: Callable[[str], None] = lambda kernel: None,
) -> Outcome:
    """Runs the target once. One that raises on purpose has refused the layout, and its words are kept.

    It may not refuse tensors that are contiguous or lie as in the user's own program. Outputs are read before this
    returns, so that an error of an asynchronous kernel is blamed on the target.

    Args:
        instrumentation: entered around the target's own code, and nothing else.
        schedule: the order of the threads and blocks of CUDA kernels on the CPU; 0 is the order of their numbers.
        unwritten: the memory that is known to have no value yet.
        launched: called with the name of each kernel after its launch.

    Raises:
        UsageFailure: from `bind`.
        Refusal: the target raised on purpose where it may not.
        DeviceLost: its kernels failed so that this process has no device any more.
        TargetFailure: it raised by accident, or returned what it may not.
    """
    arguments = bind(target, case, inputs.tensors)
    found = Launches(target.function, inputs.tensors, schedule, unwritten, launched)
    dots: list[Dots] = []
    # In the interpreter nothing is chosen by time.
    configured = one_configuration(found.notes) if interpreting() else nullcontext()
    refused, result = None, None
    with launches(found):
        try:
            with instrumentation, gpu_stood_in(as_cuda=case.as_cuda), configured, whole_tracebacks():
                result = _call(target, case, arguments, inputs, dots)
                if inputs.tensors["q"].is_cuda:
                    import torch

                    torch.cuda.synchronize()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            from .target_errors import refusal_of

            refused = refusal_of(error, target, inputs.layout, _calls(found))
    given, backends = set[int](), {launch.backend for launch in found.started}
    sources, cuda = dict[Any, LoadedSource](), list[Any]()
    for launch in found.started:
        given.update(launch.storages)
        entry = launch.entry
        if launch.backend == TORCH or entry in sources:
            continue
        if launch.backend in (CUDA, CUDA_ON_CPU):
            cuda.append(entry)
            sources[entry] = LoadedSource(entry.name, str(entry.file), entry.line, entry.source.sha256)
        else:
            sources[entry] = source_of(entry)
    # Copies have storages of their own.
    in_place = frozenset(name for name, tensor in inputs.tensors.items() if storage_of(tensor) in given)
    outcome = Outcome(None, refused, tuple(sources.values()), frozenset(backends), in_place)
    if refused is not None:
        return outcome
    trace, results = _read(result, target, case, inputs, found.notes)
    return replace(
        outcome,
        trace=trace,
        notes=tuple(dict.fromkeys(found.notes)),
        storages={storage_of(tensor): str(name) for name, tensor in results.items() if tensor is not None},
        findings=(*found.findings, *shared(results, target, case, inputs)),
        warned=kept_warnings(),
        calls=tuple(_calls(found)),
        dots=() if case.device == "cpu" else dots_of_kernels(found.compiled, cuda, dots),
    )


def _calls(found: Launches) -> list[KernelCall]:
    """The launches of Triton kernels."""
    return [launch.call for launch in found.started if launch.call is not None]


def _call(target: Target, case: Case, arguments: dict[str, Any], inputs: Inputs, dots: list[Dots]) -> object:
    import numpy as np

    products = matmuls_watched(dots) if inputs.tensors["q"].is_cuda else nullcontext()
    with warned_once(), np.errstate(all="ignore"), target.surroundings.inside(), products:
        if target.is_backward:
            result = target.function(**arguments)
            return tuple(result) if isinstance(result, Iterator) else result  # a generator runs when it is read
        return _through_autograd(target, case, arguments, inputs.tensors["do"], dots)


def _read(result: Any, target: Target, case: Case, inputs: Inputs, notes: list[str]) -> tuple[Trace, Mapping[str, Any]]:
    """The trace, and the results by name as they lie in memory. Notes tell how they were read."""
    subject = f"target {target.name!r}"
    outputs = {name: inputs.tensors[name] for name in target.outputs if name in inputs.tensors}
    if target.is_backward:
        result = as_tensors(result)
    if isinstance(result, (tuple, list)) and (by_names := by_name(target.function, result)):
        result, note = by_names
        notes.append(note)
    if not isinstance(result, Mapping):
        return read_trace(result, case, subject, outputs), {}
    result = {name: as_in_memory(value, f"{subject} returned {name}") for name, value in result.items()}
    return read_trace(result, case, subject, outputs), result


def _through_autograd(
    target: Target, case: Case, arguments: dict[str, Any], do: Tensor, dots: list[Dots]
) -> Mapping[str, Any]:
    """A forward's gradients for the case's dO, and the intermediates that it returned. Leaves keep their layouts."""
    import torch

    leaves = {}
    for name, own in target.takes.items():
        is_mask = name == "bias" and not case.bias  # in whose place a mask may stand
        if name in GRADIENT_OF and own in arguments and not is_mask and arguments[own].is_floating_point():
            leaves[name] = arguments[own].detach().requires_grad_()
    result = target.function(**arguments | {target.takes[name]: leaf for name, leaf in leaves.items()})
    exposed = _by_name(target, result)
    output = exposed["O"]
    straightened(output, "O", case, f"target {target.name!r}")
    if not output.requires_grad:
        raise TargetFailure(
            f"target {target.name!r} is not differentiable: its output does not require grad",
            "a forward is differentiated through autograd; a backward takes a parameter `do`",
        )
    if output.is_cuda:
        dots += of_autograd(output)
    do = taken(do, "do", case.shapes)
    found: Any  # None for what a leaf has no part in
    if output.shape != do.shape:  # which torch refuses, in its own words
        found = torch.autograd.grad(output, list(leaves.values()), do, allow_unused=True)
    else:
        # Given dO itself, autograd would import sympy: a second. Hooks of the target's own on its output come after.
        shown = output.view_as(output)
        shown.register_hook(lambda gradient: do.to(gradient.dtype))
        found = torch.autograd.grad(shown.sum(), list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        # To autograd and to an optimizer, a gradient that never comes is 0. For bias and sinks, None says that a
        # forward does not differentiate them, which is common. q, k and v are always differentiated.
        is_zero = gradient is None and name in ("q", "k", "v")
        exposed[GRADIENT_OF[name]] = torch.zeros_like(leaf) if is_zero else gradient
    return exposed


def _by_name(target: Target, result: object) -> dict[str, Any]:
    """The results of a forward: O and, where it returned a dict, the other intermediates in it."""
    import torch

    first = result[0] if isinstance(result, (tuple, list)) and result else result
    exposed = dict(result) if isinstance(result, Mapping) else {"O": first}
    named = [key for key in exposed if (row := lookup(str(key))) is not None and row.name == "O"]
    output = exposed[named[0]] if len(named) == 1 else None
    if not isinstance(output, torch.Tensor):
        is_dict = isinstance(result, Mapping)
        got = f"a dict of {', '.join(map(str, exposed))}" if is_dict else type(first).__name__
        raise TargetFailure(
            f"target {target.name!r} takes no dO, so it is a forward and must return its output tensor, got {got}",
            "return O, or (O, ...), or {'O': o, 'LSE': lse}; or take a parameter `do`, as a backward does",
        )
    del exposed[named[0]]
    return {"O": output} | exposed
