"""Small second cases of a target that matches: what its case did not use is tried, or listed."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

from ..inputs.options import flags, with_others
from ..model.allowance import LAST_RESORT, Client
from ..model.case import Case, flag_of
from ..model.failures import Failure, NoRoom, UsageFailure
from ..model.memory_finding import ERROR
from ..model.number import LAMBDA
from ..numerics.evidence import ProbeResult
from ..probing.compilation import Compilation
from ..processes.forks import Forks, may_fork
from .fit import OF_LENGTH, Fit, refuses, tried
from .probe import probed
from .resolve import Problem

# A tile and a half of 16, less than one of 32, and a multiple of 8, which many kernels ask for.
_SHORT, _LONGER = 24, 40
_BATCHES, _HEADS = 3, 10
# Elements of all score matrices of one small case: where its length may not be small, it is not run beyond.
_MOST_SCORES = 1 << 20
# Parameters whose meaning, or whose tensor's shape, is the target's own, and options by another name.
_CONVENTIONS = {name: name for name in ("softcap", "bias", "alibi", "mask", "sinks", "seqlens")}
_CONVENTIONS |= {"keep": "dropout", "cu_seqlens": "cu_seqlens_q", "cu_seqlens_q": "cu_seqlens_q"}
# For what kernels are not compiled anew: other numbers of the same types alone.
_OF_NUMBERS = ("--batch", "--heads")
# What is DOUBTFUL is wrong, and nothing shows that the target is meant to take it.
RIGHT, WRONG, DOUBTFUL, UNTRIED = "right", "wrong", "doubtful", "untried"


@dataclass(frozen=True, eq=False)
class Ability:
    """Something that a case does not use, "a tenth head", and the words of a small case that does."""

    words: str
    flag: str
    options: Mapping[str, Any] = field(default_factory=dict)  # empty where none is run
    is_declared: bool = True  # by the target's parameters, so that wrong results are a fault
    shown_by: frozenset[str] = frozenset()  # else one of these results, where it is right

    @property
    def sentence(self) -> str:
        return f"{self.words} ({self.flag})" if self.words else self.flag


def unused_abilities(problem: Problem) -> Iterator[Ability]:
    """What a case does not use, the simplest first; an option that was given stays as it is."""
    case, takes, small = problem.case, problem.target.takes, partial(_small, problem)
    is_softmax, is_square = case.family == "softmax", case.seqlen_q == case.seqlen_k
    is_grouped, has_heads = case.heads != case.kv_heads, "h" in case.shapes
    if "b" in case.shapes and case.batch < _BATCHES:
        yield Ability("a third batch", "--batch", small(batch=_BATCHES))
    if has_heads and case.heads < _HEADS:
        yield Ability("a tenth head", "--heads", {} if is_grouped else small(heads=_HEADS))
    if is_softmax and "causal" in takes and is_square:
        words, no = ("no causal mask", "no-") if case.causal else ("a causal mask", "")
        # Of the case's own length: its loops begin or end at other tiles than the first.
        options = small(causal=not case.causal, seqlen=case.seqlen_q)
        yield Ability(words, f"--{no}causal", options)
    if "scale" in takes and case.pattern != "dyadic":
        yield Ability("another scale", "--scale", small(scale=round(1.5 * case.scale, 2) or 1.0))
    if is_softmax and "window" in takes and (case.window is None or min(case.window) <= 0):
        yield Ability("both sides of a window", "--window")
    if is_softmax and has_heads and not is_grouped:
        # No other has one of these results right than who gives each head its key head.
        options, shown_by = small(heads=4, kv_heads=2), frozenset({"O", "dQ", "dK", "dV"})
        yield Ability("grouped heads", "--kv-heads", options, False, shown_by)
    if is_softmax and is_square and not {"seqlens", "cu_seqlens"} & problem.target.required:
        flat = {"causal": False} if case.causal else {}  # a mask would count from a corner
        is_run = not flat or "causal" in takes
        options = small(seqlen_q=_SHORT, seqlen_k=_LONGER, **flat) if is_run else {}
        yield Ability("other numbers of keys", "--seqlen-k", options, False)
    if case.pattern == Case.pattern and (options := small(pattern="negative")):
        yield Ability("logits near -120", "--pattern negative", options, False)
    if is_square and small().get("seqlen") == _SHORT and (options := small(seqlen=1)):
        yield Ability("a single row and key", "--seqlen", options)
    for name, option in _CONVENTIONS.items():
        if name in takes and name not in problem.target.required and not getattr(case, option):
            yield Ability("", flag_of(option).removesuffix("-q"))


def _small(problem: Problem, **options: Any) -> dict[str, Any]:
    """The words of a small case; none where it would not be small, or changes what was given."""
    case = problem.case
    is_alone = problem.saved is not None or case.ranks or case.cu_seqlens_q or case.seqlens
    if is_alone or problem.fixed & options.keys():
        return {}
    sizes = {"batch": 1} | ({"heads": 2} if case.kv_heads == case.heads else {})
    if not {*OF_LENGTH} & (problem.request.options.keys() | options.keys()):
        sizes["seqlen"] = _SHORT
    given = {name: size for name, size in sizes.items() if name not in problem.fixed} | options
    rows = given.get("seqlen_q", given.get("seqlen", case.seqlen_q))
    keys = given.get("seqlen_k", given.get("seqlen", case.seqlen_k))
    scores = given.get("batch", case.batch) * given.get("heads", case.heads) * rows * keys
    return given if scores <= _MOST_SCORES else {}


def with_second_cases(
    report: ProbeResult, problem: Problem, client: Client
) -> tuple[ProbeResult, Problem]:
    """The report of a match with what it leaves unchecked; of a second case if one is wrong."""
    client.tick("small second cases", 0.0)
    outcomes = _tried_all(problem)
    told = defaultdict[str, dict[str, None]](dict)
    for ability, outcome in outcomes.items():
        told[outcome][ability.sentence] = None
    report = replace(report, not_checked=(*told[UNTRIED],), undeclared=(*told[DOUBTFUL],))
    wrong = next((ability for ability in outcomes if outcomes[ability] == WRONG), None)
    if wrong is None:
        return report, problem
    options, words = wrong.options, f"{wrong.words}: {' '.join(flags(wrong.options))}"
    command = with_others(report.reproduce, options)
    try:
        second, of = probed(problem.with_options(options), command, client)
    except Failure as failure:
        ways = (f"right as it was asked for, this is with {words}", failure.way_out)
        failure.way_out = "; ".join(filter(None, ways))
        raise
    if second.failing is None and not second.compile_errors:
        note = f"wrong once, and right when run again, with {words}"
        return replace(report, notes=(*report.notes, note)), problem
    return replace(second, beyond=words, added=options), of


def _tried_all(problem: Problem) -> dict[Ability, str]:
    """What comes of a small case of each ability; wrong is also a kernel that does not compile.

    On a GPU only what compiles nothing anew is run; what is not declared in forks, which a kernel may end.
    """
    found = dict.fromkeys(unused_abilities(problem), UNTRIED)
    on_cpu = problem.case.device == "cpu"
    forks = may_fork() and not problem.target.surroundings.sets_threads
    asked, here = dict[Ability, Compilation](), list[Ability]()
    with ExitStack() as stack, Forks(2) as apart:
        for ability in found:
            if not ability.options or not (on_cpu or ability.flag in _OF_NUMBERS):
                continue
            if ability.is_declared:
                here.append(ability)
            elif forks:
                apart.add(ability, partial(_outcome, problem, ability))
        for ability in here:  # beside the forks
            trial = tried(problem, ability.options)
            found[ability] = _outcome(problem, ability, trial)
            asked[ability] = stack.enter_context(Compilation())
            if trial.record is not None:
                asked[ability].begin(trial.record)
        for ability, outcome in apart.answers(time.monotonic() + LAST_RESORT):
            found[ability] = outcome or UNTRIED
        for ability, compilation in asked.items():
            if compilation.result()[0]:
                found[ability] = WRONG
    return found


def _outcome(problem: Problem, ability: Ability, trial: Fit | None = None) -> str:
    """What a coarser arithmetic may make is right, and what is refused nothing to tell."""
    trial = trial or tried(problem, ability.options)
    wrong = WRONG if ability.is_declared else DOUBTFUL
    if trial.failure is not None:
        if isinstance(trial.failure, (UsageFailure, NoRoom)):
            return UNTRIED
        return RIGHT if refuses(trial.failure) else wrong
    run = trial.run
    assert run is not None and run.measured is not None  # noqa: PT018
    findings = run.measured.comparison.findings
    ratios = map(attrgetter("max_ratio"), findings.values())
    is_near = max(ratios) <= LAMBDA and ERROR not in map(attrgetter("severity"), run.memory)
    if run.matches or is_near:
        return RIGHT
    right = {name for name in findings if not findings[name].mismatched}
    return WRONG if right & ability.shown_by else wrong
