"""What targets take, asked of each in a process of its own: an import may print, crash or never end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...inputs.history import CheckRequest
from ...model.failures import Failure
from ...processes import run_each, run_here

_FACTORY = "gradprobe.commands.suite.described:Describer"


@dataclass(frozen=True)
class Takes:
    """A target's signature, as far as cases depend on it."""

    family: str
    names: frozenset[str]
    """The canonical names of its parameters."""
    required: frozenset[str]
    """Of those without a default."""


class Describer:
    """`Describer(device)(asked)` is what the target of a check takes. Torch is imported first, outside any timeout."""

    def __init__(self, device: str) -> None:
        from ...runtime.backend import prepare_backend

        prepare_backend(device)

    def __call__(self, request: CheckRequest) -> Takes:
        from ...targets.find import find_target

        with contextlib.redirect_stdout(sys.stderr):
            target = find_target(request.target, request.family)
        return Takes(target.family, frozenset(target.takes), target.required)


def described(
    requests: Sequence[CheckRequest], device: str, timeout: float | None, *, isolate: bool = True
) -> Iterator[Takes | None]:
    """What the target of each takes, in order; None of one that cannot be imported, which its checks will tell.

    Args:
        isolate: whether each is asked in a process of its own.
    """
    for one in requests:
        if isolate:
            (ended,) = run_each(_FACTORY, device, [one], timeout=timeout)
            yield ended.result
        else:
            with contextlib.suppress(Failure):
                (ended,) = run_here(_FACTORY, device, [one])
                yield ended.result
                continue
            yield None
