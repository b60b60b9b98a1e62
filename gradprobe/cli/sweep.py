"""`gradprobe sweep`: a matrix of cases, several at a time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.configuration.effective import effective_settings, merged
from ..commands.suite.checked import Planned
from ..commands.suite.checking import Setting
from ..commands.suite.matrix import combinations, described, suiting, titles
from ..inputs import history as last
from ..inputs.options import OPTIONS, parse
from ..model.number import plural
from . import shared_options as shared
from .checks import check_several
from .error_output import failures_told, print_settings
from .forms import Forms, with_forms

# Given several times they say one thing together, and vary nothing.
_LISTS = {option.name for option in OPTIONS if option.kind is list}


@functools.partial(shared.with_case_options, several=True)
@with_forms
def sweep(
    target: shared.Target = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    workers: Annotated[int | None, typer.Option(help="Checks at a time (default: one a core)")] = None,
    timeout: shared.Timeout = None,
    shrink_budget: shared.ShrinkBudget = shared.SHRINK_BUDGET,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Check a matrix of cases, several at a time.

    An option given several times takes each of its values: --heads 1 --heads 3 --dtype float32 --dtype float16 is four
    cases. Without any, a dozen cases are taken that suit the target.
    """
    request = shared.request_of(target, family, options, reference)
    repro_command = replace(request, target=target or "").command("sweep", workers=workers, timeout=timeout)
    with failures_told(forms, repro_command, show_traceback, target):
        forms.refuse_one_file_twice()
        shared.refuse_wrong_words(replace(request, options={}))
        for name, words in options.items():
            parse({name: words} if name in _LISTS else {name: words[0]})
        effective = effective_settings(Path.cwd())
        seconds = effective.timeout(timeout)
        at_a_time = shared.count_of_workers(workers)
        targets = shared.targets_of(target, effective.top.targets)
        values = {name: list(dict.fromkeys(words)) for name, words in options.items() if name not in _LISTS}
        varied = {name: words for name, words in values.items() if len(words) > 1}
        fixed = {name: words[0] for name, words in values.items() if len(words) == 1}
        fixed |= {name: words for name, words in options.items() if name in _LISTS}
        alike = [effective.over(replace(request, target=word, options=fixed)) for word in targets]
        plan = _plan(alike, varied, seconds)
        print_settings(effective.line(options, timeout, [plural(len(targets), "target")] if target is None else []))
        setting = Setting(show_traceback, at_a_time, timeout=seconds, shrink_budget=shrink_budget)
        raise typer.Exit(check_several(plan, forms, setting))


def _plan(
    alike: Sequence[last.CheckRequest], varied: Mapping[str, Sequence[Any]], seconds: float | None
) -> list[Planned]:
    """Every case of every target."""
    if varied:
        matrices = [combinations(varied)] * len(alike)
    else:
        device = str(alike[0].options.get("device", "auto"))
        takes = described(alike, device, seconds)
        matrices = [suiting(one, request.options) if one else [{}] for one, request in zip(takes, alike, strict=True)]
    return [
        Planned(
            f"{request.target} {title}".rstrip() if len(alike) > 1 or not title else title,
            replace(request, options=merged(case, request.options)),
        )
        for request, matrix in zip(alike, matrices, strict=True)
        for case, title in zip(matrix, titles(matrix), strict=True)
    ]
