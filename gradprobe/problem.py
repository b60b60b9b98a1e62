"""Asked -> Problem: the words of a command line as a case, resolved, and the functions to run on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .failures import UsageFailure
from .last import Asked
from .options import parse

if TYPE_CHECKING:
    from .cases.case import Case
    from .cases.saved import Saved
    from .targets.find import Target


@dataclass(frozen=True)
class Problem:
    """What is to be run."""

    case: Case
    target: Target
    reference: Target | None
    """A user's own; None for the built-in one."""
    saved: Saved | None
    """The values of a case that has `inputs`."""
    given: tuple[str, ...] = ()
    """The options that somebody gave, or a file of inputs, and that are not off."""


def problem_of(
    asked: Asked,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Problem:
    """Imports what the words need, chooses the backend, and resolves the case.

    Args:
        target: a function to check in place of the one that is asked for by a word.
        reference: likewise.

    Raises:
        Failure: whatever keeps it from being run.
    """
    given = parse(asked.options)
    if asked.family not in (None, "softmax", "lazy"):
        raise UsageFailure(f"--family must be softmax or lazy, got {asked.family!r}")
    from .cases.case import resolve
    from .running.backend import choose_threads, make_interpreter_right, prepare_backend

    device = prepare_backend(_device(given))
    from .cases.decided import with_inputs
    from .cases.saved import load
    from .targets.find import find_target

    word = given.get("inputs")
    saved = load(word) if word is not None else None
    found = find_target(asked.target if target is None else target, asked.family)
    judge = (asked.reference or None) if reference is None else reference
    beside = None if judge is None else find_target(judge, asked.family or found.family)
    given = with_inputs(given, saved, str(word), found.family) if saved else given
    packs = found.packs and saved is None
    case = resolve({**given, "device": device}, found.family, takes_bias="bias" in found.takes, packs=packs)
    _check_inplace(case, found)
    make_interpreter_right(case)
    choose_threads(case)
    return Problem(case, found, beside, saved, tuple(name for name, value in given.items() if value is not False))


def _check_inplace(case: Case, target: Target) -> None:
    """What may be written over is given to the target; dO of a forward comes through autograd."""
    given = {"do", *target.takes, *({"cu_seqlens_q", "cu_seqlens_k"} if target.packs else ())}
    for name in case.inplace:
        if name not in given:
            taken = ", ".join(target.takes.values())
            raise UsageFailure(f"--inplace {name}: target {target.name!r} is not given it", f"it takes {taken}")


def _device(given: dict[str, Any]) -> str:
    from .cases.case import DEVICES

    device = given.get("device", "auto")
    if device not in DEVICES:
        raise UsageFailure(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    return str(device)
