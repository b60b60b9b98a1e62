"""Notes which Triton kernels are launched, compiled or interpreted, and which inputs they are given."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Launched = Callable[[str], None]


@contextlib.contextmanager
def recorded_launches(
    inputs: Mapping[str, Tensor], taken: set[str], launched: Launched = lambda kernel: None
) -> Iterator[list[Any]]:
    """While open, lists the Triton kernels that are launched, and adds to `taken` the inputs that they are given.

    An input that kernels get only as a copy is not taken: its strides never reach them.

    Args:
        launched: called with the name of each kernel after its launch.
    """
    launches: list[Any] = []
    storages = {name: storage_of(tensor) for name, tensor in inputs.items()}

    def record(run: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launches.append(kernel.fn)
        given = {storage_of(tensor) for tensor in _tensors((*args, *kwargs.values()))}
        taken.update(name for name, storage in storages.items() if storage in given)
        result = run(kernel, *args, **kwargs)
        launched(kernel.fn.__name__)
        return result

    with launching_through(record):
        yield launches


@contextlib.contextmanager
def launching_through(launch: Callable[..., Any]) -> Iterator[None]:
    """While open, each Triton kernel is launched by `launch(run, kernel, *args, **kwargs)`; `run` is Triton's own."""
    kinds = kernel_types()
    originals = [kind.run for kind in kinds]
    for kind, original in zip(kinds, originals, strict=True):
        kind.run = _through(launch, original)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.run = original


def _through(launch: Callable[..., Any], original: Any) -> Any:
    return lambda kernel, *args, **kwargs: launch(original, kernel, *args, **kwargs)


def given_where_they_lay(inputs: Mapping[str, Tensor], tensors: Iterable[Tensor]) -> set[str]:
    """The inputs whose storage is among those of the tensors; copies have storages of their own."""
    given = {storage_of(tensor) for tensor in tensors}
    return {name for name, tensor in inputs.items() if storage_of(tensor) in given}


def storage_of(tensor: Tensor) -> int:
    """A number that all views of one storage share: its address. A fake tensor has none; it gives its record's."""
    from torch._subclasses import FakeTensor

    storage = tensor.untyped_storage()
    return int(storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr())


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among a kernel's arguments, also those in descriptors."""
    import torch

    for argument in arguments:
        tensor = getattr(argument, "base", argument)
        if isinstance(tensor, torch.Tensor):
            yield tensor


def kernel_types() -> list[Any]:
    """Triton's classes of compiled and interpreted kernels; none where Triton has not been imported."""
    if "triton" not in sys.modules:
        return []
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return [JITFunction, InterpretedFunction]
