"""What is compiled together: a source under its options; and one kernel of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.failures import TargetFailure
from .source import CudaSource, Parameter

if TYPE_CHECKING:
    from torch import Tensor

Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class Unit:
    """A source and how it is compiled."""

    source: CudaSource
    defines: tuple[tuple[str, str], ...] = ()
    include: tuple[str, ...] = ()
    """Folders."""

    def entry(self, name: str) -> KernelEntry:
        """A kernel by its name, or one instance of a template: `backward<32, float>`.

        Raises:
            TargetFailure: the source has no such kernel.
        """
        plain = name.partition("<")[0].strip()
        known = self.source.templates if "<" in name else self.source.kernels
        if plain not in known:
            raise TargetFailure(f"{self.source.path.name} has no kernel {name!r}", self._way_out(plain))
        return KernelEntry(self, name, known[plain])

    def _way_out(self, name: str) -> str:
        if name in self.source.templates:
            return f'it is a template: name an instance, module["{name}<...>"]'
        return f"it has: {', '.join((*self.source.kernels, *self.source.templates)) or 'none'}"


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a unit."""

    unit: Unit
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def file(self) -> Path:
        return self.unit.source.path

    @property
    def line(self) -> int:
        """Where its name stands."""
        return self.unit.source.line_of(self.plain_name)

    @property
    def plain_name(self) -> str:
        """Without the arguments of a template."""
        return self.name.partition("<")[0].strip()

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises TargetFailure where there are more or fewer than it takes."""
        if len(arguments) != len(self.parameters):
            takes = ", ".join(parameter.name or parameter.type for parameter in self.parameters)
            raise TargetFailure(
                f"kernel {self.name} of {self.file.name} takes {len(self.parameters)} arguments, got {len(arguments)}",
                f"it takes: {takes}",
            )

    def tensors(self, arguments: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """(the parameter's name, the tensor) of each argument that is one."""
        import torch

        return [
            (parameter.name, argument)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
            if isinstance(argument, torch.Tensor)
        ]
