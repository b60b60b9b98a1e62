"""Runs a target on inputs: its Trace, or the words of its refusal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..frontends import CUDA, CUDA_ON_CPU, Launches, launches
from ..frontends.triton import gpu_stood_in
from ..frontends.triton.launches import KernelCall
from ..inputs.memory import home_of
from ..inputs.tensor_layouts import Inputs
from ..model.assignment import given_back, sizes_taken, taken, with_broadcast
from ..model.case import Case, ranked
from ..model.failures import TargetFailure
from ..model.intermediates import GRADIENT_OF, TABLE, lookup, names, title
from ..model.memory_finding import MemoryFinding
from ..targets.bind import as_tensors, bind, by_name
from ..targets.find import Target
from ..targets.naming import LoadedSource, source_of
from ..targets.surroundings import kept_warnings, warned_once
from .target_memory import shared

if TYPE_CHECKING:
    from torch import Tensor

    from .arithmetic import Dots


# By kernel and parameter, the tensors that it may point to, with "", or along which axis it may be their stride: by
# its number, so that more layouts leave fewer.
Owners = Mapping[str, Mapping[str, frozenset[tuple[str, str]]]]


@dataclass(frozen=True)
class Outcome:
    trace: Trace | None
    refused: str | None
    kernels: tuple[LoadedSource, ...]
    backends: frozenset[str]
    # The inputs that kernels were given in place, and not only as copies.
    taken: frozenset[str]
    notes: tuple[str, ...] = ()
    # By the address of a storage, the intermediate that was returned in it.
    storages: Mapping[int, str] = field(default_factory=dict)
    findings: tuple[MemoryFinding, ...] = ()
    warned: tuple[str, ...] = ()
    calls: tuple[KernelCall, ...] = ()
    dots: tuple[Dots, ...] = ()
    owners: Owners = field(default_factory=dict)


def run_target(
    target: Target, case: Case, inputs: Inputs, around: Iterable[AbstractContextManager[Any]] = (),
    found: Launches | None = None,
) -> Outcome:  # fmt: skip
    """One that raises on purpose has refused the layout, unless that is its own or contiguous. `around`: entered around
    the target's own code alone."""
    import numpy as np

    arguments = bind(target, case, inputs.tensors)
    found, refused, result = found or Launches(inputs.tensors), None, None
    dots = list[Any]()
    is_on_gpu = inputs.tensors["q"].is_cuda
    own = gpu_stood_in(as_cuda=case.as_cuda), warned_once(), np.errstate(all="ignore")
    with launches(found):
        try:
            with ExitStack() as stack:
                for each in (*around, *own, target.surroundings.inside()):
                    stack.enter_context(each)
                if is_on_gpu:
                    from .arithmetic import matmuls_watched

                    stack.enter_context(matmuls_watched(dots))
                if target.is_backward:
                    result = target.function(**arguments)
                    result = tuple(result) if isinstance(result, Iterator) else result
                else:
                    do = inputs.tensors["do"]
                    result = _through_autograd(target, case, arguments, do, dots)
                if is_on_gpu:  # an error of an asynchronous kernel is the target's
                    import torch

                    torch.cuda.synchronize()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            from .target_errors import refusal_of

            refused = refusal_of(error, target, inputs.layout)
    launched = _launched(found, inputs)
    if refused is not None:
        return Outcome(None, refused, *launched)
    trace, results = _read(result, target, case, inputs, found.notes)
    if case.device != "cpu":
        from .arithmetic import dots_of_launches

        dots = dots_of_launches(found, dots)
    calls = tuple(launch.call for launch in found.started if launch.call is not None)
    return Outcome(
        trace, None, *launched, notes=tuple(dict.fromkeys(found.notes)),
        storages={home_of(tensor): name for name, tensor in results.items()},
        findings=(*found.findings, *shared(results, target, case, inputs)),
        warned=kept_warnings(), dots=tuple(dots), calls=calls, owners=_owners(calls, inputs, case, results),
    )  # fmt: skip


def _owners(
    calls: Iterable[KernelCall], inputs: Inputs, case: Case, results: Mapping[str, Any]
) -> Owners:
    homes, strides = defaultdict[int, set[str]](set), defaultdict[int, set[tuple[str, str]]](set)
    for name, tensor in (*inputs.tensors.items(), *results.items()):
        homes[home_of(tensor)].add(name.lower())  # of several where they are packed
    for name, tensor in inputs.tensors.items():
        for letter, stride in zip(case.input_axes(name), tensor.stride(), strict=False):
            if case.size(letter) > 1:
                strides[stride].add((name, letter))
    sizes, each_alone = {*map(case.size, "bhgmnde")}, list[Owners]()
    for call in calls:
        found = dict[str, frozenset[tuple[str, str]]]()
        for parameter, value in call.given.items():
            if type(value) is int and value in strides.keys() - sizes:
                found[parameter] = frozenset(strides[value])
        for parameter, home in call.pointers:
            if home in homes:
                found[parameter] = frozenset(zip(homes[home], repeat("")))
        each_alone.append({call.name: found})
    return agreed(each_alone)


def agreed(several: Iterable[Owners]) -> Owners:
    """What all that say something of a parameter have in common."""
    found = dict[str, dict[str, frozenset[tuple[str, str]]]]()
    for owners in several:
        for kernel, of_kernel in owners.items():
            known = found.setdefault(kernel, {})
            for parameter, may_be in of_kernel.items():
                known[parameter] = known.get(parameter, may_be) & may_be
    return found


def _launched(
    found: Launches, inputs: Inputs
) -> tuple[tuple[LoadedSource, ...], frozenset[str], frozenset[str]]:
    kernels, backends, given = dict[Any, LoadedSource](), set[str](), set[int]()
    for launch in found.started:
        entry = launch.entry
        backends.add(launch.backend)
        given.update(launch.storages)  # copies have storages of their own
        if launch.backend in (CUDA, CUDA_ON_CPU):
            source, line = entry.source, entry.function.line
            kernels[entry] = LoadedSource(entry.name, str(source.path), line, source.sha256)
        elif entry not in kernels:
            kernels[entry] = source_of(entry)
    in_place = list[str]()
    for name, tensor in inputs.tensors.items():
        if home_of(tensor) in given:
            in_place.append(name)
    return tuple(kernels.values()), frozenset(backends), frozenset(in_place)


def _read(
    result: Any, target: Target, case: Case, inputs: Inputs, notes: list[str]
) -> tuple[Trace, Mapping[str, Any]]:
    subject, named = f"target {target.name!r}", dict[str, Any]()
    outputs = dict[str, Any]()
    for name in filter(inputs.tensors.__contains__, target.outputs):
        outputs[name] = inputs.tensors[name]
    result = as_tensors(result) if target.is_backward else result
    if isinstance(result, (tuple, list)) and (by_names := by_name(target.function, result)):
        result, note = by_names
        notes.append(note)
    if isinstance(result, Mapping):
        for name, value in result.items():
            named[name] = as_in_memory(value, f"{subject} returned {name}")
        result = named
    trace = read_trace(result, case, subject, outputs)
    return trace, {str(name): value for name, value in named.items() if value is not None}


def _through_autograd(
    target: Target, case: Case, arguments: dict[str, Any], do: Tensor, dots: list[Dots]
) -> Mapping[str, Any]:
    import torch

    leaves = dict[str, torch.Tensor]()
    for name, own in target.takes.items():
        is_mask = name == "bias" and not case.bias  # in whose place a mask may stand
        given = None if is_mask or name not in GRADIENT_OF else arguments.get(own)
        if given is not None and given.is_floating_point():
            arguments[own] = leaves[name] = given.detach().requires_grad_()
    exposed = _of_forward(target.function(**arguments), target)
    output = exposed["O"]
    straightened(output, "O", case, f"target {target.name!r}")
    if not output.requires_grad:
        words = f"target {target.name!r} is not differentiable: its output does not require grad"
        raise TargetFailure(words, "a backward takes a parameter `do`")
    if output.is_cuda:
        from .arithmetic import of_autograd

        dots += of_autograd(output)
    do = taken(do, "do", case.shapes)
    # Given dO itself, autograd would import sympy: a second. Hooks of the target's own on its output come after.
    shown = output.view_as(output)
    shown.register_hook(lambda gradient: do.to(gradient.dtype))
    found: Any = torch.autograd.grad(shown.sum(), list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        # To autograd, a gradient that never comes is 0. Of bias and sinks, None is common: they are not differentiated.
        is_zero = gradient is None and name in ("q", "k", "v")
        exposed[GRADIENT_OF[name]] = torch.zeros_like(leaf) if is_zero else gradient
    return exposed


def _of_forward(result: object, target: Target) -> dict[str, Any]:
    import torch

    first = result[0] if isinstance(result, (tuple, list)) and result else result
    exposed, got = {"O": first}, type(first).__name__
    if isinstance(result, Mapping):
        exposed, got = dict(result), f"a dict of {', '.join(map(str, result))}"
    named = [key for key in exposed if (row := lookup(str(key))) is not None and row.name == "O"]
    output = exposed.pop(named[0]) if len(named) == 1 else None
    if isinstance(output, torch.Tensor):
        return {"O": output} | exposed
    words = (
        f"target {target.name!r} takes no dO: a forward must return its output tensor, got {got}"
    )
    raise TargetFailure(
        words, "return O, (O, ...) or {'O': o, 'LSE': lse}; a backward takes `do`"
    )


@dataclass(frozen=True)
class Trace:
    # In the axes of the table of intermediates and in the target's dtype.
    values: Mapping[str, Tensor]
    # "exported", "seen" or "recovered".
    sources: Mapping[str, str]


def dtype_of(trace: Trace, name: str) -> str | None:
    if trace.sources.get(name) == "recovered" or name not in trace.values:
        return None
    return str(trace.values[name].dtype).removeprefix("torch.")


def expected_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """In dataflow order."""
    existing = filter(case.exists, (row.name for row in TABLE))
    return {name: tuple(map(case.size, case.axes(name))) for name in existing}


def read_trace(
    result: object, case: Case, subject: str, outputs: Mapping[str, Tensor] | None = None
) -> Trace:
    """`outputs`: by parameter, what it writes gradients into: results where it returns none so named."""
    outputs = outputs or {}
    result, known = {} if result is None and outputs else result, ", ".join(names())
    if not isinstance(result, Mapping):
        got = f"{subject} must return a dict of named intermediates, got {type(result).__name__}"
        written = f"None, after writing into {', '.join(outputs)}"
        way_out = f"return {{'dQ': dq, 'dK': dk, ...}}, any of {known}; or "
        raise TargetFailure(got, way_out + (written if outputs else "(dq, dk, dv)"))
    found = dict[str, Any]()
    for key, tensor in result.items():
        if tensor is None:
            continue
        words, row = f"{subject} returned", lookup(str(key))
        if row is None:
            raise TargetFailure(f"{words} an unknown intermediate {key!r}", f"known: {known}")
        words += f" {row.name}"
        if not case.exists(row.name):
            raise TargetFailure(f"{words}, which does not exist in this case", "leave it out")
        if row.name in found:
            raise TargetFailure(f"{words} twice, once as {key!r}", "keep one")
        found[row.name] = _checked(tensor, row.name, case, subject)
    for key, tensor in outputs.items():
        found.setdefault(title(key), tensor.detach().clone())
    if not found:
        raise TargetFailure(f"{subject} returned nothing to compare", f"return any of {known}")
    values = {name: found[name] for name in expected_shapes(case) if name in found}
    return Trace(values, dict.fromkeys(values, "exported"))


def as_in_memory(value: object, subject: str) -> object:
    import torch

    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    if not isinstance(value, torch.Tensor) or is_plain:
        return value
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        plain = torch.Tensor.as_subclass(torch.Tensor.detach(value), torch.Tensor)
        is_in_memory = plain.layout == torch.strided and not plain.is_meta
        if plain.numel() and is_in_memory and not plain.data_ptr():
            words = f"{subject} as {type(value).__name__}, a subclass of Tensor without values"
            raise TargetFailure(words, "return a plain tensor")
    return plain


def _checked(tensor: object, name: str, case: Case, subject: str) -> Tensor:
    import torch

    words = f"{subject} returned {name} as"
    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        what = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TargetFailure(f"{words} {what}; it must be a floating-point tensor")
    is_dense = tensor.layout == torch.strided and not tensor.is_nested
    if not is_dense or tensor.is_meta or tensor.dtype.itemsize == 1:
        got = f"{words} {tensor.layout}, {tensor.dtype}, on {tensor.device}"
        raise TargetFailure(f"{got}; it must be dense, of 16 bits or more, with values")
    return straightened(tensor, name, case, subject).detach().clone()


def straightened(tensor: Tensor, name: str, case: Case, subject: str) -> Tensor:
    if (rank := ranked(name, case)) is not None:
        tensor = with_broadcast(tensor, *rank)
    plain, got = expected_shapes(case)[name], tuple(tensor.shape)
    expected = sizes_taken(plain, name, case.shapes)
    if got == (*expected, 1):  # a sum that keeps its axis
        tensor, got = tensor.squeeze(-1), expected
    # A target with rows before heads may give LSE and delta in either order.
    rows_first = case.shapes.find("l") < case.shapes.find("h") and len(got) in (2, 3)
    if rows_first and got != expected and got == (*expected[:-2], *expected[:-3:-1]):
        tensor, got = tensor.transpose(-1, -2), expected
    if got == expected:
        return given_back(tensor, name, case.shapes)
    is_swapped = len(expected) == 4 and [*got] == [expected[at] for at in (0, 2, 1, 3)]
    axes = ", ".join(case.axes(name) if expected == plain else case.shapes)
    words = f"{subject} returned {name} of the wrong shape: expected [{axes}] = {list(expected)}, got {list(got)}"
    way_out = f"that looks like [B, L, H, D]: return {name} transposed, or --shapes blhd if q is so too"
    raise TargetFailure(words, way_out if is_swapped else "")
