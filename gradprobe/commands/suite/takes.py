"""What a target takes, as far as cases depend on it; its module is imported in a process of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...inputs.history import CheckRequest
from ...model.failures import Failure
from ...processes import run_each, run_here

DESCRIBER = f"{__name__}:Describer"


@dataclass(frozen=True)
class TargetSignature:
    """A target's signature."""

    family: str
    names: frozenset[str]
    """The canonical names of its parameters."""
    required: frozenset[str]
    """Of those without a default."""
    file: str = ""
    """Its Python source; "" where there is none."""
    function: str = ""
    device: str = "cpu"
    """Where it runs."""


class Describer:
    """`Describer(device)(asked)` is what the target of a check takes. Torch is imported first, outside any timeout."""

    def __init__(self, device: str) -> None:
        from ...runtime.backend import prepare_backend

        self._device = prepare_backend(device)

    def __call__(self, request: CheckRequest) -> TargetSignature:
        from ...frontends.triton import stand_in_for
        from ...targets.find import find_target

        stand_in_for(request.options.get("arch"))
        with contextlib.redirect_stdout(sys.stderr):
            target = find_target(request.target, request.family)
        return TargetSignature(
            family=target.family,
            names=frozenset(target.takes),
            required=target.required,
            file=target.source.file,
            function=target.source.name,
            device=self._device,
        )


def described(
    requests: Sequence[CheckRequest], timeout: float | None, *, isolate: bool = True
) -> Iterator[TargetSignature | None]:
    """What the target of each takes, in order; None of one that cannot be imported, which its checks will tell.

    Args:
        isolate: whether each is asked in a process of its own.
    """
    for request in requests:
        device, found = str(request.options.get("device", "auto")), None
        if isolate:
            (ended,) = run_each(DESCRIBER, device, [request], timeout=timeout)
            found = ended.result
        else:
            with contextlib.suppress(Failure):
                (ended,) = run_here(DESCRIBER, device, [request])
                found = ended.result
        yield found
