"""CheckRequest -> Problem: the words of a command line as a case, resolved, and the functions to run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..inputs.options import parse, refuse_unknown_family
from ..model.failures import UsageFailure

if TYPE_CHECKING:
    from ..inputs.saved import Saved
    from ..model.case import Case
    from ..targets.find import Target


@dataclass(frozen=True)
class Problem:
    """What is to be run."""

    case: Case
    target: Target
    reference: Target | None
    """A user's own; None for the built-in one."""
    saved: Saved | None
    """The values of a case that has `inputs`."""
    given: tuple[str, ...]
    """The options that somebody gave, or a file of inputs, and that are not off."""
    request: CheckRequest
    """What it was made from."""
    fixed: frozenset[str]
    """The options that stay as they are, since they were given; also those that are off."""

    def with_options(self, options: Mapping[str, Any]) -> Problem:
        """The same target on a case with some more options, as words of the command line.

        Raises:
            Failure: no case has them, or the backend cannot run it.
        """
        request = replace(self.request, options={**self.request.options, **options})
        case = _case(_options(request, self.target, self.saved), self.target, self.saved, self.case.device)
        return replace(self, request=request, case=case)


def resolve_problem(
    request: CheckRequest,
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
    given = parse(request.options)
    refuse_unknown_family(request.family)
    from ..model.resolution import refuse_unknown
    from ..runtime.backend import prepare_backend

    refuse_unknown({"device": given.get("device", "auto")})
    device = prepare_backend(str(given.get("device", "auto")), given.get("arch"))
    from ..targets.find import find_target

    word = given.get("inputs")
    saved = None
    if word is not None:
        from ..inputs.saved import load

        saved = load(word)
    found = find_target(request.target if target is None else target, request.family)
    judge = (request.reference or None) if reference is None else reference
    beside = None
    if judge is not None:
        from ..auditing.audit import audited_target

        beside = audited_target(judge, request.family or found.family)
    given = _options(request, found, saved)
    on = tuple(name for name, value in given.items() if value is not False)
    case = _case(given, found, saved, device)
    if case.ranks is not None:
        from ..sharded import across_ranks

        found = across_ranks(found, case)
    return Problem(case, found, beside, saved, on, request, frozenset(request.options))


def _options(request: CheckRequest, target: Target, saved: Saved | None) -> dict[str, Any]:
    """What was given and what a file of inputs holds."""
    given = parse(request.options)
    if saved is None:
        return given
    from ..inputs.saved import with_inputs

    return with_inputs(given, saved, str(given["inputs"]), target.family)


def _case(given: Mapping[str, Any], target: Target, saved: Saved | None, device: str) -> Case:
    """The case, with what the backend needs for it made ready."""
    from ..model.resolution import resolve
    from ..runtime.backend import choose_threads, make_interpreter_right

    packs = target.packs and saved is None
    case = resolve({**given, "device": device}, target.family, takes_bias="bias" in target.takes, packs=packs)
    _refuse_untaken(case, target)
    make_interpreter_right(case)
    choose_threads(case)
    return case


def _refuse_untaken(case: Case, target: Target) -> None:
    """What may be written over, or is laid out in a way, is given to the target; dO of a forward through autograd."""
    given = {"do", *target.takes}
    written = given | ({"cu_seqlens_q", "cu_seqlens_k"} if target.packs else set())
    untaken = [(f"--inplace {name}", name) for name in case.inplace if name not in written]
    for run in (case.layouts or (), *(case.runs or ())):
        untaken += [(f"{name}={layout}", name) for name, layout in run if name not in {"all", *given}]
    for option, name in untaken[:1]:
        taken = ", ".join(target.takes.values())
        raise UsageFailure(f"{option}: target {target.name!r} is not given {name}", f"it takes {taken}")
