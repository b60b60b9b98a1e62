"""CheckRequest -> Problem: the words of a command line as a case, and the functions to run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..inputs.options import parse, refuse_unknown_family
from ..model.failures import UsageFailure

if TYPE_CHECKING:
    from ..inputs.saved import SavedInputs
    from ..model.case import Case
    from ..targets.find import Target


@dataclass(frozen=True)
class Problem:
    case: Case
    target: Target
    reference: Target | None
    saved: SavedInputs | None
    request: CheckRequest
    # The options that stay as they are, since they were given; also those that are off.
    fixed: frozenset[str]

    def with_options(self, options: Mapping[str, Any]) -> Problem:
        """Failure where there is no such case."""
        request = replace(self.request, options={**self.request.options, **options})
        case = _resolved(request, self.target, self.saved, self.case.device)
        return replace(self, request=request, case=case)


def resolve_problem(
    request: CheckRequest,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Problem:
    """Imports the target, chooses the backend, resolves the case; Failure where it cannot run."""
    given = parse(request.options)
    refuse_unknown_family(request.family)
    from ..model.resolution import refuse_unknown
    from ..runtime.backend import prepare_backend

    device = str(given.get("device", "auto"))
    refuse_unknown({"device": device})
    device = prepare_backend(device, given.get("arch"))
    from ..targets.find import find_target

    saved, judge = None, None
    if (word := given.get("inputs")) is not None:
        from ..inputs.saved import load

        saved = load(word)
    found = find_target(request.target if target is None else target, request.family)
    if subject := reference or request.reference:
        from .audit import audited_target

        judge = audited_target(subject, request.family or found.family)
    case = _resolved(request, found, saved, device)
    if case.ranks is not None:
        from ..sharded.ranks import across_ranks

        found = across_ranks(found, case)
    return Problem(case, found, judge, saved, request, frozenset(request.options))


def _resolved(
    request: CheckRequest, target: Target, saved: SavedInputs | None, device: str
) -> Case:
    from ..model.resolution import resolve
    from ..runtime.backend import choose_threads, make_interpreter_right

    given = parse(request.options)
    if saved is not None:
        from ..inputs.saved import with_inputs

        given = with_inputs(given, saved, str(given["inputs"]), target.family)
    takes_bias, packs = "bias" in target.takes, target.packs and saved is None
    case = resolve(
        {**given, "device": device}, target.family, takes_bias=takes_bias, packs=packs
    )
    _refuse_untaken(case, target)
    make_interpreter_right(case)
    choose_threads(case)
    return case


def _refuse_untaken(case: Case, target: Target) -> None:
    """Refuses options about tensors that the target is not given; dO goes through autograd."""
    laid_out = {"do", *target.takes}
    written = laid_out | ({"cu_seqlens_q", "cu_seqlens_k"} if target.packs else set())
    untaken = {f"--inplace {name}": name for name in case.inplace if name not in written}
    for name, layout in chain(case.layouts or (), *(case.runs or ())):
        if name not in {"all", *laid_out}:
            untaken[f"{name}={layout}"] = name
    for option, name in untaken.items():
        words = f"{option}: target {target.name!r} is not given {name}"
        raise UsageFailure(words, f"it takes {', '.join(target.takes.values())}")
