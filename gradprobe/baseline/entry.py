"""Entry: the errors of one target in one case, over several draws of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..last import Asked
from ..options import command_line


@dataclass(frozen=True)
class Errors:
    """Of one intermediate in one layout; one figure a draw, a multiple of the budget."""

    rms: tuple[float, ...]
    """The root mean square over its elements."""
    worst: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    """What is kept of one target in one case."""

    asked: Asked
    """Its options without a seed."""
    seeds: tuple[int, ...]
    ran: str
    """The backend and the kind of device, as in "triton on cuda": only where it is the same can errors be compared."""
    environment: Mapping[str, str]
    kernels: Mapping[str, str]
    """By kernel, the first digits of its file's sha256; for information."""
    case: Mapping[str, Any]
    """The options resolved, those that are off and the seed left out."""
    coarser: tuple[str, ...]
    """What was rounded more coarsely than the contract allows in most draws."""
    errors: Mapping[str, Mapping[str, Errors]]
    """By layout and intermediate."""

    @property
    def words(self) -> str:
        """Target and options, as on the command line."""
        chosen = {"family": self.asked.family, "reference": self.asked.reference}
        return command_line("check", self.asked.target, self.asked.options, chosen).removeprefix("gradprobe check ")

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Every (layout, intermediate)."""
        return [(layout, name) for layout, errors in self.errors.items() for name in errors]
