"""Launch: one launch of a kernel as it was caught, with every argument by its parameter's name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..running.taps.functions import Function
from .cuda import CudaKernel
from .host import Site


@dataclass(frozen=True)
class Launch:
    """One launch."""

    function: Function | CudaKernel
    arguments: Mapping[str, Any]
    """What each parameter was given, or has by default."""
    constants: frozenset[str]
    """The parameters under tl.constexpr."""
    site: Site | None
    """Where the host launched it; None where its source cannot be read."""

    @property
    def name(self) -> str:
        return self.function.name


def bound(jit: Any, positional: tuple[Any, ...], words: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch by parameter; what is no parameter (num_warps) is left out."""
    parameters = inspect.signature(jit.fn).parameters
    given = {name: spec.default for name, spec in parameters.items() if spec.default is not spec.empty}
    given |= dict(zip(parameters, positional, strict=False))
    return given | {name: value for name, value in words.items() if name in parameters}


def constants_of(jit: Any) -> frozenset[str]:
    """The parameters of a Triton function that are under tl.constexpr."""
    specs = inspect.signature(jit.fn).parameters
    return frozenset(name for name, spec in specs.items() if "constexpr" in str(spec.annotation))
