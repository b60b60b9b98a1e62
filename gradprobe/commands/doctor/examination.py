"""An examination: the rungs of a machine or of a target as the runner makes them, and what they come to in words."""

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from ...inputs.history import CheckRequest, digest_of
from ...inputs.versions import installed_versions, triton_cache, untested
from ...model.failures import Failure, UsageFailure
from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.number import plural
from ...model.writing import visible
from ...processes.child import fresh_caches
from ...processes.resource_limits import gpus, setting_environment
from ...render.console import first_line
from ...render.notation import CAUTION, quoted
from ...render.rows import folded, headed
from ..suite.checking import Setting, check_each
from ..suite.outcome import CheckOutcome, failure_of
from ..suite.plan import Plan, described
from ..suite.runner import Runner, Tick
from .climber import CLIMBER
from .ladder import COMPILED, CUDA, INTERPRETED, Rung, machine_rungs, target_rungs

GREEN, RED, FAILS, REFUSED, NOT_RUN = "green", "red", "fails", "refused", "not run"
# Seconds for one rung of a machine, its compilers included; some hang for ever on a machine that is at fault.
_LONGEST = 120.0
FRESH = "with every cache empty"


@dataclass(frozen=True)
class RungResult:
    rung: Rung
    outcome: CheckOutcome | None = None

    @property
    def state(self) -> str:
        """GREEN; RED where numbers are wrong, FAILS where it came to none; REFUSED by the target, or NOT_RUN."""
        if self.outcome is None:
            return NOT_RUN
        states = {MATCH: GREEN, MISMATCH: RED, FAILED: FAILS}
        return REFUSED if self.outcome.is_refused else states[self.outcome.verdict]

    @property
    def is_bad(self) -> bool:
        return self.state in (RED, FAILS)

    @property
    def reason(self) -> str:
        """What was first wrong, or why it came to nothing; "" of what is green."""
        if self.outcome is None:
            return ""
        report = self.outcome.report
        message = first_line(report) or (report.error.message if report.error else "")
        return visible(message.partition("\n")[0])

    def as_json(self) -> dict[str, Any]:
        seconds = self.outcome.report.seconds.get("total", 0.0) if self.outcome else 0.0
        return {
            "rung": self.rung.title,
            "how": self.rung.how or None,
            "state": self.state,
            "words": self.reason,
            "blames": self.rung.blames,
            "reproduce": self.rung.command or None,
            "seconds": round(seconds, 3),
        }


@dataclass(frozen=True)
class Examination:
    target: str
    """"" of the machine alone."""
    command: str
    climbed: tuple[RungResult, ...]
    """Of a target up to the first that is bad, and those above it, which were not run."""
    closer: tuple[RungResult, ...]
    left_out: tuple[str, ...]
    seconds: float

    @property
    def first_bad(self) -> RungResult | None:
        return next((result for result in self.climbed if result.is_bad), None)

    @property
    def gpu(self) -> str:
        """Its name, of the first rung that ran there; "" where none did."""
        for result in self.climbed:
            case = result.outcome.report.case if result.outcome else None
            if result.outcome and case and case.device == "cuda":
                return result.outcome.report.environment["device"]
        return ""

    @property
    def stale(self) -> list[str]:
        """What certainly runs otherwise than its file stands there."""
        words = f"a cache of compiled kernels is stale: {FRESH} it is green"
        return [words for result in self.closer if result.state == GREEN]

    @property
    def exit_code(self) -> int:
        """0 where all is green, 1 where numbers are wrong or something stale runs, 3 where nothing came."""
        states = {result.state for result in self.climbed}
        if self.stale or RED in states:
            return 1
        return Failure.exit_code if FAILS in states or GREEN not in states else 0


def examine(
    request: CheckRequest | None, command: str, timeout: float | None, tick: Tick
) -> Examination:
    """Climbs with a user's kernel to the first rung that is bad, or without one in every way of this machine.
    UsageFailure."""
    start, climbed, left_out = time.perf_counter(), list[RungResult](), list[str]()
    tick("importing torch" + (" and the target" if request else ""), None)
    if request is not None:
        takes = described(request, timeout)
        setting = Setting(timeout=timeout, checker=CLIMBER)
        climbed += _climb(Plan([*target_rungs(request, takes)]), setting, tick)
    else:
        ways, left_out = _ways()
        for how, device in ways:
            # Programs of several processes on one GPU wait for one another.
            workers = 2 if device == "cpu" else 1
            setting = Setting(workers=workers, timeout=_LONGEST, checker=CLIMBER)
            # A compiled rung is compiled, whatever is in force.
            with setting_environment({"TRITON_INTERPRET": "0"} if device == "cuda" else {}):
                climbed += _climb(Plan([*machine_rungs(how, device)]), setting, tick)
    target, found = request.target if request else "", (tuple(climbed), tuple(_closer(climbed)))
    seconds = time.perf_counter() - start
    return Examination(target, command, *found, tuple(left_out), seconds)


def _ways() -> tuple[list[tuple[str, str]], list[str]]:
    """The ways in which kernels run here, each with its device; and why there are no others."""
    ways, left_out, device = list[tuple[str, str]](), list[str](), "cuda"
    if gpus() or os.path.exists("/dev/kfd"):  # NVIDIA's, or AMD's
        ways.append((COMPILED, device))
        has_cuda = importlib.util.find_spec("cuda") is not None
        why = "cuda-core is not installed (pip install 'gradprobe[cuda]')"
    else:
        left_out, device = ["compiled: there is no GPU"], "cpu"
        has_cuda = any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++")))
        why = "neither a GPU nor g++, which runs CUDA kernels on the CPU"
    ways += [(CUDA, device)] if has_cuda else []
    left_out += [] if has_cuda else [f"CUDA: {why}"]
    return [*ways, (INTERPRETED, "cpu")], left_out


def _climb(plan: Plan, setting: Setting, tick: Tick) -> list[RungResult]:
    found = dict[int, RungResult]()
    rungs = [check for check in plan.checks if isinstance(check, Rung)]
    for outcome in Runner(plan, setting).outcomes(tick):
        number, error = outcome.report.number, outcome.report.error
        found[number] = RungResult(rungs[number], outcome)
        if found[number].is_bad and not rungs[number].how:
            if error is not None and outcome.code == UsageFailure.exit_code:
                raise failure_of(error)
            break
    return [found.get(at) or RungResult(rung) for at, rung in enumerate(rungs)]


def _closer(climbed: Sequence[RungResult]) -> Iterator[RungResult]:
    """The first bad rung with empty caches, where it is compiled, in a process that no other shares."""
    for bad in [result for result in climbed if result.is_bad][:1]:
        backend = bad.outcome.report.target.backend if bad.outcome else ""
        own = INTERPRETED if backend in ("triton-interpreter", "torch") else COMPILED
        if (bad.rung.how or own) != INTERPRETED:
            rung = replace(bad.rung, title=FRESH)
            with fresh_caches():
                (outcome,) = check_each([rung], Setting(timeout=_LONGEST, checker=CLIMBER))
            yield RungResult(rung, outcome)


_STYLES = {GREEN: "green", RED: "bold red", FAILS: "bold red", REFUSED: CAUTION}
# Columns of a state, at least, and of what a fact is about.
_STATE, _LABEL = 6, 11
_VERDICTS = {0: ("GREEN", "bold green"), 1: ("RED", "bold red"), 3: ("FAILS", "bold red")}


def render_examination(made: Examination, width: int) -> list[Text]:
    """Lines of a console: the verdict and its reason; then the ladder, and the facts behind it."""
    bad, (word, style) = made.first_bad, _VERDICTS[made.exit_code]
    lines = [*headed(word, style, f"{_verdict(made)} ({made.target or 'this machine'})", width)]
    if bad is not None:
        is_greppable = bad.reason.startswith("FIRST MISMATCH ")
        lines += [Text(bad.reason, "bold")] if is_greppable else folded(bad.reason, width)
    for words in made.stale:
        lines += folded(words, width, "bold red")
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
    bad, counted = made.first_bad, made.climbed
    lower = counted[: counted.index(bad)] if bad else counted
    states = [each.state for each in lower if bad is None or each.rung.how == bad.rung.how]
    green, rungs = states.count(GREEN), plural(len(states), "rung")
    if bad is None:
        refused = states.count(REFUSED)
        return f"{green} of {rungs} green" + f", {refused} refused by the target" * bool(refused)
    place = f'"{bad.rung.title}"' + (f", {bad.rung.how}" if bad.rung.how else "")
    below = f"first at {place}; {green} of {rungs} below it green"
    return below if states else f"{place}, the lowest rung"


def _ladder(made: Examination, width: int) -> Iterator[Text]:
    run = [result for result in made.climbed if result.state != NOT_RUN]
    rows: dict[str, dict[str, RungResult]] = {}
    for result in (*run, *made.closer):
        rows.setdefault(result.rung.title, {})[result.rung.how] = result
    ways = {result.rung.how: max(len(result.rung.how) + 1, _STATE) for result in run}
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
        if result.reason and result is not made.first_bad:
            where = ", ".join(filter(None, (result.rung.title, result.rung.how)))
            yield from folded(f"{where}: {result.reason}", width)
    if above := made.climbed[len(run) :]:
        count, last = plural(len(above), "rung"), quoted(above[-1].rung.title)
        yield Text(f"  above it {count} not run, to {last}", "dim")
    for words in made.left_out:
        yield from folded(words, width, "dim")


_PREFIXES = ("TRITON_", "CUDA_", "NVIDIA_TF32_", "CUBLAS_", "TORCH", "PYTORCH_", "GRADPROBE_")


def facts_here() -> dict[str, Any]:
    """What the process that was typed knows without torch: versions, and what may change which code runs."""
    found = sorted(os.environ.items())
    variables = {name: word for name, word in found if name.startswith(_PREFIXES)}
    facts = {"versions": installed_versions(), "untested": untested(), "cache": triton_cache()}
    return facts | {"variables": variables}


def _loaded(made: Examination) -> list[dict[str, Any]]:
    """The files of the target and of its kernels; without a target those of the libraries."""
    specs = map(importlib.util.find_spec, ("gradprobe", "torch", "triton", "numpy"))
    files = [spec.origin or "" for spec in specs if spec]
    if made.target:
        reports = [result.outcome.report for result in made.climbed if result.outcome]
        files = [report.target.file for report in reports]
        files += [kernel.file for report in reports for kernel in report.target.kernels]
    found = []
    for file in filter(os.path.isfile, dict.fromkeys(files)):
        modified = os.stat(file).st_mtime
        found.append({"file": file, "sha256": digest_of(file), "modified": modified})
    return found


def _facts(made: Examination) -> Iterator[tuple[str, str]]:
    facts = facts_here()
    for file in _loaded(made):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(file["modified"]))
        yield "runs", f"{_short(file['file'])}, of {when}, sha256 {file['sha256'][:12]}"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield "versions", f"{versions}; {facts['untested'] or 'within what is tested'}"
    yield "GPU", made.gpu or "none"
    variables = [f"{name}={_short(value)}" for name, value in facts["variables"].items()]
    yield "variables", "; ".join(variables) or "none of TRITON_* and CUDA_*"
    yield "cache", f"Triton's, {_short(facts['cache'])}"
    yield "seconds", f"{made.seconds:.1f}"


def _short(text: str) -> str:
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def as_json(made: Examination) -> dict[str, Any]:
    """The document gradprobe.doctor/1, for bug reports."""
    bad, verdicts = made.first_bad, {0: "green", 1: "red", 3: "error"}
    document: dict[str, Any] = {
        "schema": "gradprobe.doctor/1",
        "verdict": verdicts[made.exit_code],
        "target": made.target or None,
        "first_bad": bad and bad.as_json(),
        "stale": made.stale,
        "rungs": [result.as_json() for result in made.climbed],
        "closer": [result.as_json() for result in made.closer],
        "left_out": made.left_out,
        "files": _loaded(made),
        "machine": {"gpu": made.gpu, **facts_here()},
        "reproduce": made.command,
        "seconds": round(made.seconds, 3),
    }
    shortened: dict[str, Any] = json.loads(_short(json.dumps(document)))
    return shortened
