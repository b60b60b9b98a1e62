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
    values: Mapping[str, Tensor]
    """In the axes of the table of intermediates and in the target's dtype."""
    sources: Mapping[str, str]
    """"exported" by the target, "seen" or "recovered"."""


def dtype_of(trace: Trace, name: str) -> str | None:
    if trace.sources.get(name) == "recovered" or name not in trace.values:
        return None
    return str(trace.values[name].dtype).removeprefix("torch.")


def expected_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shape of every intermediate of the case's family, in dataflow order."""
    return {
        row.name: tuple(map(case.size, case.axes(row.name)))
        for row in TABLE
        if case.exists(row.name)
    }


def read_trace(
    result: object, case: Case, subject: str, outputs: Mapping[str, Tensor] | None = None
) -> Trace:
    """A target's result as a Trace, or a TargetFailure. A value of None means "not exposed".

    `outputs`: by parameter, what the target writes gradients into: results where it returns none of that name.
    """
    result, known = {} if result is None and outputs else result, ", ".join(names())
    if not isinstance(result, Mapping):
        otherwise = (
            f"None, after writing into {', '.join(outputs)}"
            if outputs
            else "the tuple (dq, dk, dv)"
        )
        raise TargetFailure(
            f"{subject} must return a dict of named intermediates, got {type(result).__name__}",
            f"return any of {known}, for example {{'dQ': dq, 'dK': dk, 'dV': dv}}; or {otherwise}",
        )
    found: dict[str, Tensor] = {}
    for key, tensor in result.items():
        if tensor is None:
            continue
        row = lookup(str(key))
        if row is None:
            raise TargetFailure(
                f"{subject} returned an unknown intermediate {key!r}", f"known: {known}"
            )
        if not case.exists(row.name):
            raise TargetFailure(
                f"{subject} returned {row.name}, which does not exist in this case", "leave it out"
            )
        if row.name in found:
            raise TargetFailure(
                f"{subject} returned {row.name} twice, once as {key!r}", "keep one of them"
            )
        found[row.name] = _checked(tensor, row.name, case, subject)
    for key, tensor in (outputs or {}).items():
        found.setdefault(title(key), tensor.detach().clone())
    if not found:
        raise TargetFailure(f"{subject} returned nothing to compare", f"return any of {known}")
    values = {name: found[name] for name in expected_shapes(case) if name in found}
    return Trace(values, dict.fromkeys(values, "exported"))


def as_in_memory(value: object, subject: str) -> object:
    """A result as it lies in memory, of which a subclass of Tensor may say something else."""
    import torch
    from torch._subclasses import FakeTensor

    if not isinstance(value, torch.Tensor) or type(value) in (
        torch.Tensor,
        torch.nn.Parameter,
        FakeTensor,
    ):
        return value
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        plain = torch.Tensor.as_subclass(torch.Tensor.detach(value), torch.Tensor)
        if (
            plain.numel()
            and plain.layout == torch.strided
            and not plain.is_meta
            and not plain.data_ptr()
        ):
            kind = type(value).__name__
            raise TargetFailure(
                f"{subject} as {kind}, a subclass of Tensor without values", "return a plain tensor"
            )
    return plain


def _checked(tensor: object, name: str, case: Case, subject: str) -> Tensor:
    import torch

    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        what = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TargetFailure(
            f"{subject} returned {name} as {what}; it must be a floating-point tensor"
        )
    if (
        tensor.layout != torch.strided
        or tensor.is_nested
        or tensor.is_meta
        or tensor.dtype.itemsize == 1
    ):
        raise TargetFailure(
            f"{subject} returned {name} as {tensor.layout}, {tensor.dtype}, on {tensor.device}; "
            "it must be dense, of 16 bits or more, with values",
            "what is on meta has no values; is it the default device?" if tensor.is_meta else "",
        )
    return (
        straightened(tensor, name, case, subject).detach().clone()
    )  # its next results may be written over these


def straightened(tensor: Tensor, name: str, case: Case, subject: str) -> Tensor:
    """A result in the axes of the table of intermediates, or a TargetFailure for its shape."""
    if (rank := ranked(name, case)) is not None:
        tensor = with_broadcast(tensor, *rank)
    plain, got = expected_shapes(case)[name], tuple(tensor.shape)
    expected = sizes_taken(plain, name, case.shapes)
    if got == (*expected, 1):  # a sum that keeps its axis
        tensor, got = tensor.squeeze(-1), expected
    # A target with rows before heads may give LSE and delta in either order.
    rows_first = case.shapes.find("l") < case.shapes.find("h")
    if (
        rows_first
        and len(got) in (2, 3)
        and got != expected
        and got == (*expected[:-2], *expected[:-3:-1])
    ):
        tensor, got = tensor.transpose(-1, -2), expected
    if got == expected:
        return given_back(tensor, name, case.shapes)
    is_swapped = len(expected) == 4 and got == (expected[0], expected[2], expected[1], expected[3])
    axes = ", ".join(case.axes(name) if expected == plain else case.shapes)
    words = f"{subject} returned {name} of the wrong shape: expected [{axes}] = {list(expected)}, got {list(got)}"
    way_out = f"that looks like [B, L, H, D]: return {name} transposed, or --shapes blhd if q comes so too"
    raise TargetFailure(words, way_out if is_swapped else "")
