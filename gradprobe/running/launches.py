"""Notes which Triton kernels are launched, compiled or interpreted, and on whose memory."""

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
    """While open, notes the Triton kernels that are launched, and adds to `taken` the inputs that they are given.

    An input of which they are given a copy only is not taken: its strides end before them.

    Args:
        launched: told of each kernel after its launch.
    """
    launches: list[Any] = []
    storages = {name: storage_of(tensor) for name, tensor in inputs.items()}
    kinds = kernel_types()
    originals = [kind.run for kind in kinds]

    def recording(original: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            launches.append(self.fn)
            given = {storage_of(tensor) for tensor in _tensors((*args, *kwargs.values()))}
            taken.update(name for name, storage in storages.items() if storage in given)
            result = original(self, *args, **kwargs)
            launched(self.fn.__name__)
            return result

        return run

    for kind, original in zip(kinds, originals, strict=True):
        kind.run = recording(original)
    try:
        yield launches
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.run = original


def given_where_they_lay(inputs: Mapping[str, Tensor], tensors: Iterable[Tensor]) -> set[str]:
    """The inputs that are among tensors, and not copies of them."""
    given = {storage_of(tensor) for tensor in tensors}
    return {name for name, tensor in inputs.items() if storage_of(tensor) in given}


def storage_of(tensor: Tensor) -> int:
    """A number that all views of one storage share: its address; of a fake tensor, which has none, its record's."""
    storage = tensor.untyped_storage()
    return int(storage._cdata if _is_fake(tensor) else storage.data_ptr())


def _is_fake(tensor: Tensor) -> bool:
    from torch._subclasses import FakeTensor

    return isinstance(tensor, FakeTensor)


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among a kernel's arguments, those under descriptors too."""
    import torch

    for argument in arguments:
        tensor = getattr(argument, "base", argument)
        if isinstance(tensor, torch.Tensor):
            yield tensor


def kernel_types() -> list[Any]:
    """Triton's two kinds of kernel, compiled and interpreted; none where the target never imported Triton."""
    if "triton" not in sys.modules:
        return []
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return [JITFunction, InterpretedFunction]
