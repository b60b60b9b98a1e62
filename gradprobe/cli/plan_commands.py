"""`gradprobe strides`, `sweep` and `mutate`: many layouts, cases or faults."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from msgspec import structs

from ..commands.settings import Settings, seconds
from ..commands.suite.checking import Setting
from ..commands.suite.journal import Journal, SweepRequest, sweep_plan
from ..commands.suite.on_ray import RayCluster
from ..commands.suite.outcome import code_of, code_of_report
from ..commands.suite.runner import Runner
from ..inputs.history import CheckRequest
from ..inputs.options import OPTIONS, parse
from ..model.case import flag_of
from ..model.documents import Reports
from ..model.failures import INTERRUPTED, UsageFailure
from ..model.report import Report
from ..processes.resource_limits import gpus
from ..render.files import keeps_changing, unfinished
from ..render.terminal import Progress, dump, note, show, width
from .checks import check_several, say, tell_interrupted
from .command import Call, Command, count_of_workers
from .option_rows import option
from .report_forms import show_document

# A small case with a partial tile along both axes: there are many runs.
SMALL = {"seqlen": 37, "head_dim": 16, "block_m": 32, "block_n": 32}
# Each imports torch, which more would not repay.
_MOST_WORKERS = 4
_LAYOUTS = ("layout", "runs")
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens"}
# What contradicts a survey of layouts, or would change nothing about it.
_REFUSED = {
    **dict.fromkeys((*_LAYOUTS, "inputs"), "strides tries every layout, of drawn values"),
    "repeat": "strides runs each layout as often as it needs",
    "poison": "strides fills memory with NaN",
}


@Command("target family details timeout fix_budget")
def strides(
    call: Call,
    fast: Annotated[bool, option("--fast", "Try fewer layouts, for use on every push")] = False,
) -> int:
    """Run a kernel with every tensor in every layout, and say which it gets wrong.

    Without a target, those are tried that pyproject.toml names under tool.gradprobe.
    """
    for name in call.request.options:
        if name in _REFUSED:
            raise UsageFailure(f"--{name}: {_REFUSED[name]}", f"gradprobe check takes --{name}")
    # A project's own layouts are for check: here all are tried.
    settings = call.settings()
    targets = call.targets(settings)
    so_far = Reports(reports=(), planned=len(targets))
    if code := call.forms.write_so_far(so_far):
        return code
    so_far = structs.replace(so_far, planned=len(targets) if len(targets) > 1 else None)
    workers = min(_MOST_WORKERS, count_of_workers(None, unless_gpu=True))
    how = call.setting(settings, workers=workers)
    for word in targets:
        asked = settings.over(replace(call.request, target=word))
        report = _surveyed(asked, call, how, so_far, fast=fast)
        say(report, call.tracebacks)
        call.forms.show(report)
        so_far = structs.replace(so_far, reports=(*so_far.reports, report))
    return call.forms.write(so_far, code_of(list(map(code_of_report, so_far.reports))))


def _surveyed(
    asked: CheckRequest, call: Call, how: Setting, before: Reports, *, fast: bool
) -> Report:
    from ..commands.survey import survey

    options = {name: word for name, word in asked.options.items() if name not in _LAYOUTS}
    small: dict[str, Any] = {**SMALL}
    if _LENGTHS & options.keys():
        del small["seqlen"]
    request = replace(asked, options=small | options)
    words = {"fast": fast or None, "timeout": call.timeout}
    repro_command = replace(asked, options=options).command("strides", **words)
    given, forms = frozenset(options), call.forms
    report: Report | None = None
    done = of = 0
    with Progress() as tick:
        try:
            for report in survey(request, repro_command, given=given, fast=fast, setting=how):
                done, of = len(report.runs), report.strides.layouts if report.strides else 0
                tick(f"{asked.target}, layout {done} of {of}", done / max(1, of))
                forms.write_so_far(structs.replace(before, reports=(*before.reports, report)))
        except KeyboardInterrupt:
            shown = partial(forms.show, report) if report else None
            tell_interrupted(tick, done, of, "layouts", None if forms.on_stdout else shown)
            raise
    assert report is not None
    return report


# Given several times they say one thing together, and vary nothing.
_LISTS = {option.name for option in OPTIONS if option.kind is list}
_JOURNAL = "Append each result to this file (default: .gradprobe/sweep.jsonl)"
_RESUME = "Go on with the sweep whose results are in this file"
_WORKERS = "Checks at a time (default: one a GPU, else one a core)"
_RAY = "Make the checks on the Ray cluster at ADDRESS; local starts one here"
_RETRIES = "How often --ray makes a lost check again"


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
    cases. A sweep that was killed goes on with --resume.
    """
    request = call.request
    for name, words in request.options.items():
        parse({name: words} if name in _LISTS else {name: words[0]})
    on_gpus = workers is None and request.options.get("device") != ["cpu"] and gpus()
    at_a_time = len(gpus()) if on_gpus else count_of_workers(workers)
    cluster = None if ray is None else RayCluster(ray, retries)
    if cluster is not None:
        cluster.refuse_unusable()
    given = {"target": call.target, "family": request.family, "reference": request.reference}
    given |= {"journal": journal, **request.options}
    for name in given if resume is not None else ():
        if given[name]:
            what = "TARGET" if name == "target" else flag_of(name)
            words = f"--resume goes on with its own cases, and {what} asks for others"
            raise UsageFailure(words, f"drop {what}")
    settings = call.settings()
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
    fixed, varied = dict[str, Any](), dict[str, list[Any]]()
    for name, words in call.request.options.items():
        values = list(dict.fromkeys(words))
        if name not in _LISTS and len(values) > 1:
            varied[name] = values
        else:
            fixed[name] = words if name in _LISTS else words[0]
    if not varied:
        way_out = "--heads 1 --heads 3 is two; check TARGET --battery chooses cases"
        raise UsageFailure("sweep: no option is given several values", way_out)
    requests = list[CheckRequest]()
    for word in call.targets(settings):
        whole = settings.over(replace(call.request, target=word, options=fixed))
        own = {name: value for name, value in whole.options.items() if name not in varied}
        requests.append(replace(whole, options=own))
    return SweepRequest(tuple(requests), varied)


_CHECK = "The gate: a command such as 'pytest -q' (default: gradprobe check)"
_KERNELS = "Where faults are planted (default: the target's own file)"
_GATES = "Gates at a time (default: one a core, or one with a GPU)"
_LIMIT = "Time for one fault (default: 5 times the gate's, and 30 s)"


@Command("target family", takes_file=True)
def mutate(
    call: Call,
    check: Annotated[str | None, option("--check", _CHECK, "COMMAND")] = None,
    file: Annotated[str | None, option("--file", _KERNELS, "FILE.py")] = None,
    sample: Annotated[int, option("--sample", "Faults to plant", "N", min=1)] = 40,
    workers: Annotated[int | None, option("--workers", _GATES)] = None,
    timeout: Annotated[float | None, option("--timeout", _LIMIT, "SECONDS")] = None,
) -> int:
    """Plant faults that people make in a kernel, one at a time, and say which of them its gate lets pass.

    The gate is gradprobe check with the case options given, or any command with --check. The kernel's own file is
    never written.
    """
    from ..commands import mutants

    request = call.request
    if check is None and request.target.endswith(".py"):
        words = f"target {request.target!r} names no function for gradprobe to check"
        raise UsageFailure(words, "add :FUNCTION, or give --check COMMAND")
    others = sorted(request.options.keys() - {"seed", "device"})
    for name in others if check is not None else ():
        words = f"{flag_of(name)}: a case of gradprobe check, and --check names another gate"
        raise UsageFailure(words, f"drop {flag_of(name)}")
    gate = mutants.Gate.of(request.command() if check is None else check)
    at_a_time = count_of_workers(workers, unless_gpu=True)
    limit = None if timeout is None else seconds(timeout)
    source = mutants.read_file(*mutants.file_of(request, file))
    all_faults = mutants.mutants_of(source)
    if not all_faults:
        raise UsageFailure(f"no fault can be planted in {source.path}")
    chosen = tuple(mutants.sampled(all_faults, sample, int(request.options.get("seed", 0))))
    how = (gate, source, len(all_faults), chosen, at_a_time, limit)
    campaign = mutants.Campaign(request.target, *how)
    done, total, json_file = 0, len(chosen), call.forms.json
    with Progress() as tick:
        tick("the gate on the file as it is", None)
        try:
            for done in campaign.run():
                tick(f"fault {done} of {total}", done / total)
                if json_file is not None and keeps_changing(json_file):
                    dump(json_file, unfinished(mutants.campaign_as_json(campaign, call.line)))
        except KeyboardInterrupt:
            found = partial(show, list(mutants.render_campaign(campaign, width())))
            tell_interrupted(tick, done, total, "faults", None if json_file == "-" else found)
            raise
    lines = list(mutants.render_campaign(campaign, width()))
    show_document(json_file, mutants.campaign_as_json(campaign, call.line), lines)
    return campaign.exit_code
