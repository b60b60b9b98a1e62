"""Small second cases of a target that matches: what its case did not use is tried, or listed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import filterfalse
from operator import attrgetter
from typing import Any

from ..inputs.draw import draw
from ..inputs.options import flags, with_others
from ..model.allowance import LAST_RESORT, Client
from ..model.case import Case, flag_of
from ..model.failures import Failure, NoRoom, UsageFailure
from ..model.mechanisms import door
from ..model.memory_finding import ERROR
from ..model.number import LAMBDA
from ..numerics.evidence import ProbeResult
from ..numerics.range import out_of_range
from ..probing.compilation import Compilation, compiles
from ..processes.forks import ParallelWork, may_fork
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
# What comes of a small case. What is DOUBTFUL is wrong, and nothing shows that the target is meant to take it.
RIGHT, REFUSED, WRONG, DOUBTFUL, UNTRIED = "right", "refused", "wrong", "doubtful", "untried"


@dataclass(frozen=True, eq=False)
class Ability:
    """Something that a case does not use, "a tenth head", and the options that ask for it."""

    words: str
    flag: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Words of a small case that uses it; empty where none is run."""
    is_plain: bool = False
    """Whether the target's parameters say that it takes it, so that wrong results are a fault."""
    shown_by: tuple[str, ...] = ()
    """The results of which one that is right shows that it is taken, where no parameter does."""

    @property
    def sentence(self) -> str:
        return f"{self.words} ({self.flag})" if self.words else self.flag


def unused_abilities(problem: Problem) -> Iterator[Ability]:
    """What a case does not use, the simplest first; an option that was given stays as it is."""
    case, takes, small = problem.case, problem.target.takes, partial(_small, problem)
    is_softmax, is_square = case.family == "softmax", case.seqlen_q == case.seqlen_k
    is_grouped, has_causal = case.heads != case.kv_heads, "causal" in takes
    if "b" in case.shapes and case.batch < _BATCHES:
        yield Ability("a third batch", "--batch", small(batch=_BATCHES), True)
    if "h" in case.shapes and case.heads < _HEADS:
        yield Ability("a tenth head", "--heads", {} if is_grouped else small(heads=_HEADS), True)
    if is_softmax and has_causal and is_square:
        words, no = ("no causal mask", "no-") if case.causal else ("a causal mask", "")
        # Of the case's own length: its loops begin or end at other tiles than the first.
        options = small(causal=not case.causal, seqlen=case.seqlen_q)
        yield Ability(words, f"--{no}causal", options, True)
    if "scale" in takes and case.pattern != "dyadic":
        options = small(scale=round(1.5 * case.scale, 2) or 1.0)
        yield Ability("another scale", "--scale", options, True)
    if is_softmax and "window" in takes and (case.window is None or min(case.window) <= 0):
        options = small(window="5,3") if is_square else {}
        yield Ability("both sides of a window", "--window", options)
    if is_softmax and "h" in case.shapes and not is_grouped:
        # Torch spreads a single key head over all heads, and raises of other numbers that differ: whoever has one of
        # these results right then gives each head its key head.
        several = small(heads=4, kv_heads=2)
        shown_by = ("O", "dQ", "dK", "dV") if several else ()
        options = several or (small(kv_heads=1) if case.heads > 1 else {})
        yield Ability("grouped heads", "--kv-heads", options, shown_by=shown_by)
    is_short = small().get("seqlen") == _SHORT
    if is_softmax and is_square and not {"seqlens", "cu_seqlens"} & problem.target.required:
        is_plain = bool({"align", "cu_seqlens_k", "max_seqlen_k"} & takes.keys())
        flat = {"causal": False} if case.causal else {}  # a mask would count from a corner
        is_run = is_short and (has_causal or not flat)
        for words, rows in (("more keys than rows", _SHORT), ("more rows than keys", _LONGER)):
            keys = _SHORT + _LONGER - rows
            options = small(seqlen_q=rows, seqlen_k=keys, **flat) if is_run else {}
            yield Ability(words, "--seqlen-q, --seqlen-k", options, is_plain)
    if is_softmax and case.head_dim_v == case.head_dim:
        options = small(head_dim_v=16 if case.head_dim > 16 else 32)
        yield Ability("a head dim of v alone", "--head-dim-v", options)
    # Of what no option says that it is left out, only what is run is told: logits that no softmax without its maximum
    # bears, a single row, a head dim that fills all lanes.
    if case.pattern == Case.pattern and (options := small(pattern="large")):
        yield Ability("large logits", "--pattern large", options)
        yield Ability("logits near -120", "--pattern negative", small(pattern="negative"))
    if is_short and is_square and (options := small(seqlen=1)):
        yield Ability("a single row and key", "--seqlen", options, True)
    options = small(head_dim=32 if case.head_dim == 64 else 64)
    if options and case.head_dim == case.head_dim_v:
        yield Ability("another head dim", "--head-dim", options)
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
    if not {*OF_LENGTH} & problem.request.options.keys() and "seqlen_q" not in options:
        sizes["seqlen"] = _SHORT
    given = {name: size for name, size in sizes.items() if name not in problem.fixed} | options
    rows = given.get("seqlen_q", given.get("seqlen", case.seqlen_q))
    keys = given.get("seqlen_k", given.get("seqlen", case.seqlen_k))
    scores = given.get("batch", case.batch) * given.get("heads", case.heads) * rows * keys
    return given if scores <= _MOST_SCORES else {}


@door("second-cases", lambda report, problem, *args: (report, problem))
def with_second_cases(
    report: ProbeResult, problem: Problem, client: Client
) -> tuple[ProbeResult, Problem]:
    """The report of a match with what it leaves unchecked; of a second case if one is wrong."""
    client.tick("small second cases", 0.0)
    found = _tried_all(problem)
    told = defaultdict[str, list[Ability]](list)
    for ability, outcome in found.items():
        told[outcome].append(ability)
    left = dict.fromkeys(map(attrgetter("sentence"), told[UNTRIED]))
    doubtful = tuple(map(attrgetter("sentence"), told[DOUBTFUL]))
    report = replace(report, not_checked=tuple(left), undeclared=doubtful)
    if not told[WRONG]:
        return report, problem
    wrong = told[WRONG][0]
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

    On a GPU only what compiles nothing anew is run; what no parameter tells in a fork, which a
    kernel may end.
    """
    on_cpu, forks = problem.case.device == "cpu", may_fork()
    found = dict.fromkeys(unused_abilities(problem), UNTRIED)
    run = [each for each in found if each.options and (on_cpu or each.flag in _OF_NUMBERS)]
    here = [ability for ability in run if ability.is_plain or not forks]
    apart = [] if problem.target.surroundings.sets_threads else [*filterfalse(here.count, run)]
    with ExitStack() as stack:
        work = partial(_apart, problem, apart)
        fork = stack.enter_context(ParallelWork(work)) if apart else None
        asked = dict[Ability, Compilation]()
        for ability in here:
            asked[ability] = compilation = stack.enter_context(Compilation())
            trial = tried(problem, ability.options)
            found[ability] = _judged(ability, trial)
            if trial.record is not None:
                compilation.begin(trial.record)
        if fork is not None:
            outcomes = fork.answer(LAST_RESORT) or _each_alone(problem, apart)
            found |= zip(apart, outcomes, strict=True)
        for ability, compilation in asked.items():
            if compilation.result()[0]:
                found[ability] = WRONG
    return found


def _each_alone(problem: Problem, abilities: Sequence[Ability]) -> Iterator[str]:
    for ability in abilities:
        with ParallelWork(partial(_apart, problem, [ability])) as fork:
            yield from fork.answer(LAST_RESORT) or [UNTRIED]


def _apart(problem: Problem, abilities: Sequence[Ability]) -> list[str]:
    """What comes of each. A fork asks at its end what compiles: it interprets none from then on."""
    trials = [tried(problem, ability.options) for ability in abilities]
    outcomes = list(map(_judged, abilities, trials))
    for at, trial in enumerate(trials):
        if outcomes[at] == RIGHT and trial.record is not None and not compiles(trial.record):
            outcomes[at] = WRONG
    return outcomes


def _judged(ability: Ability, tried: Fit) -> str:
    """What a coarser arithmetic may make is right: asked is whether an ability is taken at all."""
    wrong = WRONG if ability.is_plain else DOUBTFUL
    if tried.failure is not None:
        if isinstance(tried.failure, (UsageFailure, NoRoom)):
            return UNTRIED
        return REFUSED if refuses(tried.failure) else wrong
    run = tried.run
    assert run is not None and run.measured is not None  # noqa: PT018
    findings = run.measured.comparison.findings.values()
    is_near = max(map(attrgetter("max_ratio"), findings)) <= LAMBDA
    if run.matches or (is_near and ERROR not in map(attrgetter("severity"), run.memory)):
        return RIGHT
    if out_of_range(tried.problem.case, draw(tried.problem.case, tried.problem.case.device)):
        return UNTRIED
    right = {finding.name for finding in findings if not finding.mismatched}
    return WRONG if right & set(ability.shown_by) else wrong
