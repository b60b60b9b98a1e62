"""Rungs tried in processes of their own, so that one which crashes ends no other: what was found, and its words."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.text import Text

from ...inputs.history import CheckRequest
from ...model.allowance import Client
from ...model.failures import Failure, TargetFailure
from ...model.layout_run import MATCH
from ...model.number import plural
from ...model.writing import visible
from ...processes import TaskResult, run_each
from ...processes.child import fresh_caches
from ...processes.ended import TIMEOUT
from ...render.console import first_line
from ...render.notation import CAUTION, quoted
from ...render.rows import folded, headed
from ...targets.builtin import has_driver
from .ladder import (
    COMPILED,
    CUDA,
    FAILS,
    GREEN,
    INTERPRETED,
    NOT_RUN,
    RED,
    REFUSED,
    Rung,
    RungResult,
    machine_rungs,
    run_primitive,
    target_rungs,
)
from .machine_survey import MachineSurvey, facts_here, survey_machine, survey_target

# Seconds for one rung of a machine, its compilers included; some hang for ever on a machine that is at fault.
_LONGEST = 120.0
FRESH = "with every cache empty"
_FACTORY = f"{__name__}:Climber"
Tick = Callable[[str, float | None], object]


@dataclass(frozen=True)
class Examination:
    target: str
    """"" of the machine alone."""
    command: str
    survey: MachineSurvey
    climbed: tuple[RungResult, ...]
    """Of a target up to the first that is bad, and those above it, which were not run."""
    closer: tuple[RungResult, ...]
    left_out: tuple[str, ...]
    seconds: float

    @property
    def first_bad(self) -> RungResult | None:
        return next((result for result in self.climbed if result.is_bad), None)

    @property
    def stale(self) -> tuple[str, ...]:
        """What certainly runs otherwise than its file stands there."""
        found = [words for file in self.survey.files for words in file.stale]
        if any(result.state == GREEN for result in self.closer):
            found.append(f"a cache of compiled kernels is stale: {FRESH} it is green")
        return tuple(found)

    @property
    def exit_code(self) -> int:
        """0 where all is green, 1 where numbers are wrong or something stale runs, 3 where nothing came."""
        states = {result.state for result in self.climbed}
        if self.stale or RED in states:
            return 1
        return Failure.exit_code if FAILS in states or GREEN not in states else 0


class Climber:
    """`Climber(setup)(rung)` tries a rung, of a machine or of a target; None in its place asks for a survey."""

    def __init__(self, setup: tuple[CheckRequest | None, str]) -> None:
        request, device = setup
        if device == "cuda":
            # A compiled rung is compiled, whatever is in force.
            os.environ.pop("TRITON_INTERPRET", None)
        from ...pipeline.resolve import resolve_problem
        from ...runtime.backend import prepare_backend

        self._device, self._problem = prepare_backend(device) if request is None else "", None
        if request is not None:  # once: some modules cannot be imported twice by one process
            with contextlib.redirect_stdout(sys.stderr):
                self._problem = resolve_problem(request)

    def __call__(self, rung: Rung | None) -> RungResult | MachineSurvey:
        if rung is None:
            problem = self._problem
            return survey_machine(self._device) if problem is None else survey_target(problem)
        start = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            result = self._checked(rung) if rung.request else self._primitive(rung)
        return replace(result, seconds=time.perf_counter() - start)

    def _primitive(self, rung: Rung) -> RungResult:
        words = run_primitive(rung.primitive, rung.how == CUDA, self._device)
        return RungResult(rung, RED if words else GREEN, words)

    def _checked(self, rung: Rung) -> RungResult:
        from ...pipeline.probe import probed
        from ...pipeline.reported import report_of
        from ...pipeline.resolve import resolve_problem

        assert rung.request is not None
        if self._problem is None:
            problem = resolve_problem(rung.request)
        else:
            options = rung.request.options
            problem = replace(self._problem.with_options(options), fixed=frozenset(options))
        report = report_of(probed(problem, rung.request.command(), Client())[0])
        state = GREEN if report.verdict == MATCH else RED
        return RungResult(rung, state, visible(first_line(report)), report=report)


def examine(
    request: CheckRequest | None, command: str, timeout: float | None, tick: Tick
) -> Examination:
    """Climbs with a user's kernel to the first rung that is bad, or without one in every way of this machine.

    Failure where the target or torch cannot be imported.
    """
    start = time.perf_counter()
    tick("importing torch" + (" and the target" if request else ""), None)
    ways, left_out = _ways() if request is None else ([("", "")], [])
    climbed = list[RungResult]()
    for how, device in ways:
        survey, results = _climb(request, how, device, timeout, tick)
        climbed += results
    seconds, target = time.perf_counter() - start, request.target if request else ""
    again = tuple(_closer(survey, climbed))
    return Examination(target, command, survey, tuple(climbed), again, tuple(left_out), seconds)


def _ways() -> tuple[list[tuple[str, str]], list[str]]:
    """The ways in which kernels run here, each with its device; and why there are no others."""
    backend, ways, left_out = "cpu", list[tuple[str, str]](), ["compiled: torch sees no GPU"]
    if has_driver():
        (ended,) = run_each(_FACTORY, (None, "auto"), [None], timeout=_LONGEST)
        backend = _survey_of(ended, "torch").backend
    if backend == "cpu":
        has_cuda = any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++")))
        why = "neither a GPU nor g++, which runs CUDA kernels on the CPU"
    else:
        ways, left_out = [(COMPILED, backend)], []
        has_cuda = importlib.util.find_spec("cuda") is not None
        why = "cuda-core is not installed (pip install 'gradprobe[cuda]')"
    ways += [(CUDA, backend)] if has_cuda else []
    left_out += [] if has_cuda else [f"CUDA: {why}"]
    return [*ways, (INTERPRETED, "cpu")], left_out


def _climb(
    request: CheckRequest | None, how: str, device: str, timeout: float | None, tick: Tick
) -> tuple[MachineSurvey, list[RungResult]]:
    items: list[Rung | None] = [None, *([] if request else machine_rungs(how, device))]
    found = dict[int, RungResult]()
    # Programs of several processes on one GPU wait for one another.
    workers = 2 if request is None and device == "cpu" else 1
    limit = timeout if request else _LONGEST
    for ended in run_each(_FACTORY, (request, device), items, workers=workers, timeout=limit):
        if ended.item is None:
            survey = _survey_of(ended, f"target {request.target!r}" if request else "torch")
            if request is not None and survey.built is not None:
                items += target_rungs(request, survey.built)
            continue
        found[ended.index] = _result_of(ended)
        if request is not None and found[ended.index].is_bad:
            break
        words = f"{len(found)} of {len(items) - 1} rungs {how}".strip()
        tick(words, len(found) / (len(items) - 1))
    rungs = [(at, rung) for at, rung in enumerate(items) if rung is not None]
    return survey, [found.get(at) or RungResult(rung, NOT_RUN) for at, rung in rungs]


def _survey_of(ended: TaskResult, subject: str) -> MachineSurvey:
    if ended.raised is not None:
        raise ended.raised.failure
    if ended.crash is not None:
        how = f"{ended.crash.words}{ended.crash.where}"
        raise TargetFailure(f"{subject} crashed while it was imported: {how}")
    assert isinstance(ended.result, MachineSurvey)
    return ended.result


def _result_of(ended: TaskResult) -> RungResult:
    if (crash := ended.crash) is not None:
        how = "" if crash.kind == TIMEOUT else "it ended its process: "
        return RungResult(ended.item, FAILS, f"{how}{crash.words}{crash.where}", crash.seconds)
    if ended.raised is not None:
        state = REFUSED if ended.raised.kind in ("Refusal", "NoRoom") else FAILS
        return RungResult(ended.item, state, visible(ended.raised.message.partition("\n")[0]))
    assert isinstance(ended.result, RungResult)
    return ended.result


def _closer(survey: MachineSurvey, climbed: list[RungResult]) -> list[RungResult]:
    """The first bad rung with empty caches, where it is compiled, in a process that no other shares."""
    bad = next((result for result in climbed if result.is_bad), None)
    if bad is None or not _is_compiled(bad, survey):
        return []
    with fresh_caches():
        again = [replace(bad.rung, title=FRESH)]
        (ended,) = run_each(_FACTORY, (None, survey.backend), again, timeout=_LONGEST)
    return [_result_of(ended)]


def _is_compiled(bad: RungResult, survey: MachineSurvey) -> bool:
    if bad.rung.how:
        return bad.rung.how != INTERPRETED
    has_source = any(not file.file.endswith(".py") for file in survey.files)
    is_cuda = bad.report is not None and "cuda" in (bad.report.target.backend or "")
    return survey.backend != "cpu" or has_source or is_cuda


_STYLES = {GREEN: "green", RED: "bold red", FAILS: "bold red", REFUSED: CAUTION}
_WAYS = ("", COMPILED, INTERPRETED, CUDA)
# Columns of a state, at least, and of what a fact is about.
_STATE, _LABEL = 6, 11
_VERDICTS = {0: ("GREEN", "bold green"), 1: ("RED", "bold red"), 3: ("FAILS", "bold red")}


def render_examination(made: Examination, width: int) -> list[Text]:
    """Lines of a console: the verdict and its reason; then the ladder, and the facts behind it."""
    bad, (word, style) = made.first_bad, _VERDICTS[made.exit_code]
    word = "STALE" if made.stale and bad is None else word
    lines = [*headed(word, style, f"{_verdict(made)} ({made.target or 'this machine'})", width)]
    if bad is not None:
        is_greppable = bad.words.startswith("FIRST MISMATCH ")
        lines += [Text(bad.words, "bold")] if is_greppable else folded(bad.words, width)
    for words in made.stale:
        lines += folded(_short(words), width, "bold red")
    lines += [Text(), *_ladder(made, width)]
    if bad is not None and bad.rung.command:
        lines.append(Text(f"  in full: {bad.rung.command}"))
    lines.append(Text())
    for label, words in _facts(made):
        first, *more = (line.plain[2:] for line in folded(words, width - _LABEL))
        lines.append(Text.assemble((f"  {label:<{_LABEL}}", "dim"), first))
        lines += [Text(f"  {'':<{_LABEL}}{line}") for line in more]
    return lines


def _verdict(made: Examination) -> str:
    bad = made.first_bad
    if bad is None:
        states = [result.state for result in made.climbed]
        refused = states.count(REFUSED)
        more = f", {refused} refused by the target" if refused else ""
        return f"{states.count(GREEN)} of {plural(len(states), 'rung')} green{more}"
    place = f'"{bad.rung.title}"' + (f", {bad.rung.how}" if bad.rung.how else "")
    lower = made.climbed[: made.climbed.index(bad)]
    states = [result.state for result in lower if result.rung.how == bad.rung.how]
    if not states:
        return f"{place}, the lowest rung"
    rungs = plural(len(states), "rung")
    return f"first at {place}; {states.count(GREEN)} of {rungs} below it green"


def _ladder(made: Examination, width: int) -> Iterator[Text]:
    """A row for each rung, and a column for each way in which kernels were run."""
    run = [result for result in made.climbed if result.state != NOT_RUN]
    rows: dict[str, dict[str, RungResult]] = {}
    for result in (*run, *made.closer):
        rows.setdefault(result.rung.title, {})[result.rung.how] = result
    shown = {result.rung.how for result in run}
    ways = {way: max(len(way) + 1, _STATE) for way in _WAYS if way in shown}
    heads = "".join(f"{way:<{room}}" for way, room in ways.items())
    longest = max(map(len, rows)) + 1
    yield Text(f"  {'':<{longest}}{heads} rules", "dim")
    for title, results in rows.items():
        line = Text(f"  {title:<{longest}}")
        for way, room in ways.items():
            state = results[way].state if way in results else ""
            line.append(f"{state:<{room}}", _STYLES.get(state, "dim"))
        is_bad = any(result.is_bad for result in results.values())
        blames = next(iter(results.values())).rung.blames
        words = f" {'in' if is_bad else 'out'} {blames}"
        yield line.append(words, "bold red" if is_bad else "dim")
    for result in run:
        if result.words and result is not made.first_bad:
            where = ", ".join(filter(None, (result.rung.title, result.rung.how)))
            yield from folded(f"{where}: {result.words}", width)
    if above := made.climbed[len(run) :]:
        count, last = plural(len(above), "rung"), quoted(above[-1].rung.title)
        yield Text(f"  above it {count} not run, to {last}", "dim")
    for words in made.left_out:
        yield from folded(words, width, "dim")


def _facts(made: Examination) -> Iterator[tuple[str, str]]:
    survey, facts = made.survey, facts_here()
    for file in survey.files:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.modified))
        yield "runs", f"{_short(file.file)}, of {when}, sha256 {file.sha256[:12]}"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield "versions", f"{versions}; {facts['untested'] or 'within what is tested'}"
    yield "GPU", survey.gpu or "none that torch sees"
    variables = [f"{name}={_short(value)}" for name, value in facts["variables"].items()]
    yield "variables", "; ".join(variables) or "none of TRITON_* and CUDA_*"
    unused = " (not used: kernels are interpreted)" if survey.backend == "cpu" else ""
    yield "cache", f"Triton's, {_short(facts['cache'])}{unused}"
    yield "seconds", f"{made.seconds:.1f}"


def _short(text: str) -> str:
    """Paths below the home folder begin with ~."""
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def as_json(made: Examination) -> dict[str, Any]:
    """The document gradprobe.doctor/1, for bug reports."""
    bad, machine = made.first_bad, asdict(made.survey) | facts_here()
    verdicts = {0: "green", 1: "stale" if made.stale and bad is None else "red", 3: "error"}
    document: dict[str, Any] = {
        "schema": "gradprobe.doctor/1",
        "verdict": verdicts[made.exit_code],
        "target": made.target or None,
        "first_bad": None if bad is None else _of_result(bad),
        "stale": made.stale,
        "rungs": list(map(_of_result, made.climbed)),
        "closer": list(map(_of_result, made.closer)),
        "left_out": made.left_out,
        "files": machine.pop("files"),
        "machine": machine,
        "reproduce": made.command,
        "seconds": round(made.seconds, 3),
    }
    shortened: dict[str, Any] = json.loads(_short(json.dumps(document)))
    return shortened


def _of_result(result: RungResult) -> dict[str, Any]:
    return {
        "rung": result.rung.title,
        "how": result.rung.how or None,
        "state": result.state,
        "words": result.words,
        "blames": result.rung.blames,
        "reproduce": result.rung.command or None,
        "seconds": round(result.seconds, 3),
    }
