"""Trace: the intermediates of a run by name, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.assignment import given_back, sizes_taken, with_broadcast
from ..model.case import Case, ranked
from ..model.failures import TargetFailure
from ..model.intermediates import TABLE, lookup, names, title

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Trace:
    """What a run exposed."""

    values: Mapping[str, Tensor]
    """By name, in the axes of the table of intermediates and in the target's dtype."""
    sources: Mapping[str, str]
    """By name: "exported" by the target; later also "seen" or "recovered"."""


def dtype_of(trace: Trace, name: str) -> str | None:
    """The dtype in which the target gave an intermediate; None where it did not give it."""
    if trace.sources.get(name) == "recovered" or name not in trace.values:
        return None
    return str(trace.values[name].dtype).removeprefix("torch.")


def expected_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shape of every intermediate that exists in the case's family, in dataflow order."""
    return {row.name: tuple(map(case.size, case.axes(row.name))) for row in TABLE if case.exists(row.name)}


def read_trace(result: object, case: Case, subject: str, outputs: Mapping[str, Tensor] | None = None) -> Trace:
    """A target's result as a Trace. Names are matched without case; a value of None means "not exposed".

    Args:
        outputs: the tensors, by parameter, into which the target writes gradients. Each is a result where the target
            returns none of that name. A target that only writes may return None.

    Raises:
        TargetFailure: not a dict, nothing in it, an unknown name, one name twice, not a tensor, or a wrong shape.
    """
    result = {} if result is None and outputs else result
    known = ", ".join(names())
    if not isinstance(result, Mapping):
        or_none = f"; or None, after writing into {', '.join(outputs)}" if outputs else "; or the tuple (dq, dk, dv)"
        raise TargetFailure(
            f"{subject} must return a dict of named intermediates, got {type(result).__name__}",
            f"return any of {known}, for example {{'dQ': dq, 'dK': dk, 'dV': dv}}{or_none}",
        )
    values: dict[str, Tensor] = {}
    for key, tensor in result.items():
        if tensor is None:
            continue
        row = lookup(str(key))
        if row is None:
            raise TargetFailure(f"{subject} returned an unknown intermediate {key!r}", f"known: {known}")
        if not case.exists(row.name):
            raise TargetFailure(f"{subject} returned {row.name}, which does not exist in this case", "leave it out")
        if row.name in values:
            raise TargetFailure(f"{subject} returned {row.name} twice, once as {key!r}", "keep one of them")
        values[row.name] = _checked(tensor, row.name, case, subject)
    for key, tensor in (outputs or {}).items():
        values.setdefault(title(key), tensor.detach().clone())
    if not values:
        raise TargetFailure(f"{subject} returned nothing to compare", f"return any of {known}")
    order = [name for name in expected_shapes(case) if name in values]
    return Trace({name: values[name] for name in order}, dict.fromkeys(order, "exported"))


def as_in_memory(value: object, subject: str) -> object:
    """A result as what lies in memory: a subclass of Tensor may say something else of it.

    Raises:
        TargetFailure: it has no memory of its own.
    """
    import torch
    from torch._subclasses import FakeTensor

    if not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, torch.nn.Parameter, FakeTensor):
        return value
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        plain = torch.Tensor.as_subclass(torch.Tensor.detach(value), torch.Tensor)
        if plain.numel() and plain.layout == torch.strided and not plain.is_meta and not plain.data_ptr():
            kind = type(value).__name__
            raise TargetFailure(f"{subject} as {kind}, a subclass of Tensor without values", "return a plain tensor")
    return plain


def _checked(tensor: object, name: str, case: Case, subject: str) -> Tensor:
    import torch

    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        what = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TargetFailure(f"{subject} returned {name} as {what}; it must be a floating-point tensor")
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta or tensor.dtype.itemsize == 1:
        raise TargetFailure(
            f"{subject} returned {name} as {tensor.layout}, {tensor.dtype}, on {tensor.device}; "
            "it must be dense, of 16 bits or more, with values",
            "what is on meta has no values; is it the default device?" if tensor.is_meta else "",
        )
    # A copy: a target may write its next results over these.
    return straightened(tensor, name, case, subject).detach().clone()


def straightened(tensor: Tensor, name: str, case: Case, subject: str) -> Tensor:
    """A result in the axes of the table of intermediates.

    Raises:
        TargetFailure: it does not have the shape that the case's order of axes gives.
    """
    rank = ranked(name, case)
    if rank is not None:
        tensor = with_broadcast(tensor, *rank)
    plain, got = expected_shapes(case)[name], tuple(tensor.shape)
    expected = sizes_taken(plain, name, case.shapes)
    if got == (*expected, 1):  # a sum that keeps its axis
        tensor, got = tensor.squeeze(-1), expected
    # A target with rows before heads may give LSE and delta in either order.
    rows_first = case.shapes.find("l") < case.shapes.find("h")
    if rows_first and len(got) in (2, 3) and got != expected and got == (*expected[:-2], *expected[:-3:-1]):
        tensor, got = tensor.transpose(-1, -2), expected
    if got == expected:
        return given_back(tensor, name, case.shapes)
    swapped = len(expected) == 4 and got == tuple(expected[axis] for axis in (0, 2, 1, 3))
    axes = ", ".join(case.axes(name) if expected == plain else case.shapes)
    words = f"{subject} returned {name} of the wrong shape: expected [{axes}] = {list(expected)}, got {list(got)}"
    way_out = f"that looks like [B, L, H, D]: return {name} transposed, or --shapes blhd if q comes so too"
    raise TargetFailure(words, way_out if swapped else "")
