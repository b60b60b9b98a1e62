"""`gradprobe sweep`: many cases of a target, several at a time, that can be killed and resumed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Annotated, Any

from ..commands.settings import Settings
from ..commands.suite.journal import Journal, SweepRequest
from ..commands.suite.on_ray import RayCluster
from ..commands.suite.runner import Runner
from ..commands.suite.sweep import sweep_plan
from ..inputs.history import CheckRequest
from ..inputs.options import OPTIONS, parse
from ..model.case import flag_of
from ..model.failures import INTERRUPTED, UsageFailure
from ..processes.resource_limits import gpus
from ..render.terminal import note
from .checks import check_several
from .command import Call, Command, count_of_workers
from .option_rows import option

# Given several times they say one thing together, and vary nothing.
_LISTS = {option.name for option in OPTIONS if option.kind is list}
_JOURNAL = "Append each result to this file (default: .gradprobe/sweep.jsonl)"
_RESUME = "Go on with the sweep whose results are in this file"
_WORKERS = "Checks at a time (default: one a GPU where there are any, else one a core)"
_RAY = "Make the checks on the Ray cluster at ADDRESS; local starts one here"
_RETRIES = "How often --ray makes a check again whose worker or machine is lost"


@Command("target family reference details timeout shrink_budget", several=True)
def sweep(
    call: Call,
    journal: Annotated[str | None, option("--journal", _JOURNAL, "FILE")] = None,
    resume: Annotated[str | None, option("--resume", _RESUME, "FILE")] = None,
    workers: Annotated[int | None, option("--workers", _WORKERS)] = None,
    ray: Annotated[str | None, option("--ray", _RAY, "ADDRESS")] = None,
    retries: Annotated[int, option("--retries", _RETRIES, min=0)] = 3,
) -> int:
    """Check many cases, several at a time, the cheapest first.

    An option given several times takes each of its values: --heads 1 --heads 3 --dtype float32 --dtype float16 is four
    cases. A sweep that was killed goes on with --resume. Of cases that nobody names, check --battery makes some.
    """
    request = call.request
    for name, words in request.options.items():
        parse({name: words} if name in _LISTS else {name: words[0]})
    on_gpus = workers is None and request.options.get("device") != ["cpu"] and gpus()
    at_a_time = len(gpus()) if on_gpus else count_of_workers(workers)
    cluster = None if ray is None else RayCluster(ray, retries)
    if cluster is not None:
        cluster.refuse_unusable()
    if resume is not None:
        given: dict[str, Any] = {"family": request.family, "reference": request.reference}
        given |= {"journal": journal, **request.options}
        asked_for = ["TARGET"] if call.target is not None else []
        for what in [*asked_for, *(flag_of(name) for name, word in given.items() if word)]:
            words = f"--resume goes on with its own cases, and {what} asks for others"
            raise UsageFailure(words, f"drop {what}")
    settings = call.settings(has_targets=call.target is None)
    how = call.setting(settings, several=True, workers=at_a_time)
    kept = None if resume is None else Journal.reopened(resume)
    asked = kept.asked if kept else _asked(call, settings)
    plan = sweep_plan(asked)
    with kept or Journal.begun(asked, journal) as kept:
        code = check_several(Runner(plan, how, kept, cluster), call.forms)
    if code == INTERRUPTED and kept.file:
        note(f"it goes on with gradprobe sweep --resume {shlex.quote(kept.file)}")
    return code


def _asked(call: Call, settings: Settings) -> SweepRequest:
    """What the command line asks for. UsageFailure where that is no more than a check."""
    fixed, varied = dict[str, Any](), dict[str, list[Any]]()
    for name, words in call.request.options.items():
        values = list(dict.fromkeys(words))
        if name in _LISTS:
            fixed[name] = words
        elif len(values) == 1:
            fixed[name] = values[0]
        else:
            varied[name] = values
    if not varied:
        way_out = "--heads 1 --heads 3 is two; check TARGET --battery chooses cases"
        raise UsageFailure("sweep: no option is given several values", way_out)
    requests = list[CheckRequest]()
    for word in call.targets(settings):
        whole = settings.over(replace(call.request, target=word, options=fixed))
        own = {name: value for name, value in whole.options.items() if name not in varied}
        requests.append(replace(whole, options=own))
    return SweepRequest(tuple(requests), varied)
