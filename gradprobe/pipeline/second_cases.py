"""Small second cases of a target that matches: what its own case did not use is tried, or listed as not checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..inputs.draw import draw
from ..inputs.options import flags, with_others
from ..model.allowance import LAST_RESORT
from ..model.case import Case
from ..model.failures import Failure, NoRoom, UsageFailure
from ..model.mechanisms import door
from ..model.memory_finding import ERROR
from ..model.number import LAMBDA
from ..numerics.evidence import Probed
from ..numerics.range import out_of_range
from ..probing.compilation import Compilation, compiles
from ..probing.experiment import Tick
from ..processes.forks import ParallelWork, may_fork
from .fit import OF_LENGTH, TrialRun, refuses, tried
from .probe import probed
from .resolve import Problem

# A tile and a half of 16, less than one of 32, and a multiple of 8, which many kernels ask for.
_SHORT, _LONGER = 24, 40
_BATCHES, _HEADS = 3, 10
# Elements of all score matrices of one small case: where its length may not be small, it is not run beyond.
_MOST_SCORES = 1 << 20
# Options whose meaning, or whose tensor's shape, is the target's own: the field of a case, and the flag.
_CONVENTIONS = {name: (name, f"--{name}") for name in ("softcap", "bias", "alibi", "mask", "sinks", "seqlens")}
_CONVENTIONS |= {"keep": ("dropout", "--dropout")}
_CONVENTIONS |= {name: ("cu_seqlens_q", "--cu-seqlens") for name in ("cu_seqlens", "cu_seqlens_q")}
# Seconds after which a fork is given up: a kernel that does not take a case may never end. What it left is not checked.
_PATIENCE = LAST_RESORT
# What comes of a small case. What is DOUBTFUL is wrong, and nothing shows that the target is meant to take it.
RIGHT, REFUSED, WRONG, DOUBTFUL, UNTRIED = "right", "refused", "wrong", "doubtful", "untried"


@dataclass(frozen=True, eq=False)
class Ability:
    """Something that a target may take and a case does not use."""

    words: str
    """What it is: "a tenth head"."""
    flag: str
    """The options that ask for it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Words of a small case that uses it; empty where none is run."""
    is_plain: bool = False
    """Whether the target's parameters say that it takes it, so that wrong results are a fault."""
    shown_by: tuple[str, ...] = ()
    """The results of which one that is right throughout shows that it is taken, where no parameter says so."""
    is_compiled: bool = True
    """Whether kernels are compiled anew for it: not for other numbers of the same types alone."""

    @property
    def sentence(self) -> str:
        """As it is listed: "a tenth head (--heads)"."""
        return f"{self.words} ({self.flag})" if self.words else self.flag


def unused_abilities(problem: Problem) -> Iterator[Ability]:
    """What the case of a problem does not use, the simplest first.

    Of an option that somebody gave, or that a file of inputs holds, there is no small case: it stays as it is.
    """
    case, takes, small = problem.case, problem.target.takes, partial(_small, problem)
    is_softmax, is_square = case.family == "softmax", case.seqlen_q == case.seqlen_k
    is_grouped, is_short = case.heads != case.kv_heads, small().get("seqlen") == _SHORT
    if "b" in case.shapes and case.batch < _BATCHES:
        yield Ability("a third batch", "--batch", small(batch=_BATCHES), is_plain=True, is_compiled=False)
    if "h" in case.shapes and case.heads < _HEADS:
        options = {} if is_grouped else small(heads=_HEADS)
        yield Ability("a tenth head", "--heads", options, is_plain=True, is_compiled=False)
    if is_softmax and "causal" in takes and is_square:
        words, flag = ("no causal mask", "--no-causal") if case.causal else ("a causal mask", "--causal")
        # Of the case's own length: its loops begin or end at other tiles than the first.
        yield Ability(words, flag, small(causal=not case.causal, seqlen=case.seqlen_q), is_plain=True)
    if "scale" in takes and case.pattern != "dyadic":
        yield Ability("another scale", "--scale", small(scale=round(1.5 * case.scale, 2) or 1.0), is_plain=True)
    if is_softmax and "window" in takes and (case.window is None or min(case.window) <= 0):
        yield Ability("both sides of a window", "--window", small(window="5,3") if is_square else {})
    if is_softmax and "h" in case.shapes and not is_grouped:
        # Torch spreads a single key head over all heads, and raises of other numbers that differ: whoever has one of
        # these results right then gives each head its key head.
        if options := small(heads=4, kv_heads=2):
            yield Ability("grouped heads", "--kv-heads", options, shown_by=("O", "dQ", "dK", "dV"))
        else:
            yield Ability("grouped heads", "--kv-heads", small(kv_heads=1) if case.heads > 1 else {})
    if is_softmax and is_square and not {"seqlens", "cu_seqlens"} & problem.target.required:
        yield from _lengths(problem, is_short)
    if is_softmax and case.head_dim_v == case.head_dim:
        yield Ability("a head dim of v alone", "--head-dim-v", small(head_dim_v=16 if case.head_dim > 16 else 32))
    # Of what no option says that it is left out, only what is run is told.
    yield from (one for one in _extremes(problem, is_short) if one.options)
    for name, (option, flag) in _CONVENTIONS.items():
        if name in takes and name not in problem.target.required and not getattr(case, option):
            yield Ability("", flag)


def _small(problem: Problem, **options: Any) -> dict[str, Any]:
    """The words of a small case with some options; none where it would not be small, or changes what was given."""
    case = problem.case
    if problem.saved is not None or case.ranks or case.cu_seqlens_q or case.seqlens or problem.fixed & options.keys():
        return {}
    sizes: dict[str, Any] = {"batch": 1}
    if case.kv_heads == case.heads:
        sizes["heads"] = 2
    if not {*OF_LENGTH} & problem.request.options.keys() and "seqlen_q" not in options:
        sizes["seqlen"] = _SHORT
    given = {name: size for name, size in sizes.items() if name not in {*problem.fixed, *options}} | options
    rows = given.get("seqlen_q", given.get("seqlen", case.seqlen_q))
    keys = given.get("seqlen_k", given.get("seqlen", case.seqlen_k))
    scores = given.get("batch", case.batch) * given.get("heads", case.heads) * rows * keys
    return given if scores <= _MOST_SCORES else {}


def _lengths(problem: Problem, is_short: bool) -> Iterator[Ability]:
    """More keys than rows, and more rows than keys, without a mask that counts from a corner."""
    case, takes = problem.case, problem.target.takes
    flat: dict[str, Any] = {"causal": False} if case.causal and "causal" in takes else {}
    is_flat = not case.causal or bool(flat)
    is_plain = bool({"align", "cu_seqlens_k", "max_seqlen_k"} & takes.keys())
    for words, rows, keys in (("more keys than rows", _SHORT, _LONGER), ("more rows than keys", _LONGER, _SHORT)):
        options = _small(problem, seqlen_q=rows, seqlen_k=keys, **flat) if is_flat and is_short else {}
        yield Ability(words, "--seqlen-q, --seqlen-k", options, is_plain)


def _extremes(problem: Problem, is_short: bool) -> Iterator[Ability]:
    """Logits far from 0, which no softmax without its maximum bears; a single row; a head dim that fills all lanes."""
    case, small = problem.case, partial(_small, problem)
    if case.pattern == Case.pattern:
        for words, pattern in (("large logits", "large"), ("logits near -120", "negative")):
            yield Ability(words, f"--pattern {pattern}", small(pattern=pattern))
    if is_short and case.seqlen_q == case.seqlen_k:
        yield Ability("a single row and key", "--seqlen", small(seqlen=1), is_plain=True)
    if case.head_dim == case.head_dim_v:
        yield Ability("another head dim", "--head-dim", small(head_dim=32 if case.head_dim == 64 else 64))


@door("second-cases", lambda report, problem, *args: (report, problem))
def with_second_cases(report: Probed, problem: Problem, tick: Tick, *more: Any) -> tuple[Probed, Problem]:
    """The report of a problem with what it leaves unchecked; that of a small second case instead, where that is wrong.

    Args:
        more: as `probed` takes it behind `tick`.

    Raises:
        Failure: from `probed`, of a second case.
    """
    if report.failing is not None or report.compile_errors:
        return report, problem
    tick("small second cases", 0.0)
    found, wrong = _tried_all(problem)
    untried = dict.fromkeys(one.sentence for one in found if found[one] == UNTRIED)
    doubtful = dict.fromkeys(one.sentence for one in found if found[one] == DOUBTFUL)
    report = replace(report, not_checked=tuple(untried), undeclared=tuple(doubtful))
    if wrong is None:
        return report, problem
    options, words = wrong.options, f"{wrong.words}: {' '.join(flags(wrong.options))}"
    command = with_others(report.reproduce, options, options)
    try:
        second, of = probed(problem.with_options(options), command, tick, *more)
    except Failure as failure:
        failure.way_out = "; ".join(filter(None, (f"right as it was asked for, this is with {words}", failure.way_out)))
        raise
    if second.failing is None and not second.compile_errors:
        return replace(report, notes=(*report.notes, f"wrong once, and right when run again, with {words}")), problem
    return replace(second, beyond=words, added=options), of


def _tried_all(problem: Problem) -> tuple[dict[Ability, str], Ability | None]:
    """What comes of a small case of each ability that the problem's own case does not use, and the first that is wrong.

    Wrong is also one with which a kernel does not compile. On a GPU only what compiles nothing anew is run. What no
    parameter tells is run in a fork: a kernel that does not take it may leave its memory and end its process.
    """
    on_cpu, abilities = problem.case.device == "cpu", list(unused_abilities(problem))
    small = [one for one in abilities if one.options]
    here = [one for one in small if one.is_plain and (on_cpu or not one.is_compiled)]
    apart = [one for one in small if not one.is_plain and on_cpu and not problem.target.surroundings.sets_threads]
    found = dict.fromkeys(abilities, UNTRIED)
    if not may_fork():
        here, apart = [*here, *apart], []
    with ExitStack() as stack:
        fork = stack.enter_context(ParallelWork(partial(_outcomes, problem, apart))) if apart else None
        compilations = {one: stack.enter_context(Compilation()) for one in here}
        found |= _of_both(problem, here, compilations)
        for one in here:
            if found[one] == UNTRIED:
                found[one] = _outcome(problem, one, compilations[one])
        if fork is not None:
            others = fork.answer(_PATIENCE) or _each_apart(problem, apart)
            found |= dict(zip(apart, others, strict=True))
        uncompiled = [one for one in here if compilations[one].result()[0]]
    wrong = [one for one in abilities if found[one] == WRONG]
    return found, next(iter([*wrong, *uncompiled]), None)


def _of_both(
    problem: Problem, abilities: Sequence[Ability], compilations: Mapping[Ability, Compilation]
) -> dict[Ability, str]:
    """A third batch and another scale in one case, where that is right: each is right then."""
    both = [one for one in abilities if one.words in ("a third batch", "another scale")]
    if len(both) != 2:
        return {}
    options = {**both[1].options, **both[0].options}  # the first has the sizes
    is_right = _outcome(problem, replace(both[0], options=options), compilations[both[0]]) == RIGHT
    return dict.fromkeys(both, RIGHT) if is_right else {}


def _each_apart(problem: Problem, abilities: Sequence[Ability]) -> list[str]:
    """What comes of each in a fork of its own; what ends one of them is not tried."""
    found = []
    for ability in abilities:
        with ParallelWork(partial(_outcomes, problem, [ability])) as fork:
            found += fork.answer(_PATIENCE) or [UNTRIED]
    return found


def _outcomes(problem: Problem, abilities: Sequence[Ability]) -> list[str]:
    """What comes of each in a fork, which asks at its end which kernels compile: it interprets none from then on."""
    runs = [tried(problem, ability.options) for ability in abilities]
    outcomes = [_judged(ability, run) for ability, run in zip(abilities, runs, strict=True)]
    for at, run in enumerate(runs):
        if outcomes[at] == RIGHT and run.record is not None and not compiles(run.record):
            outcomes[at] = WRONG
    return outcomes


def _outcome(problem: Problem, ability: Ability, compilation: Compilation) -> str:
    """What comes of a small case, and meanwhile whether its kernels compile is asked."""
    run = tried(problem, ability.options)
    if run.record is not None:
        compilation.begin(run.record)
    return _judged(ability, run)


def _judged(ability: Ability, tried: TrialRun) -> str:
    """A crash or a result of a wrong shape is wrong where the ability is plain.

    Right is also what a coarser arithmetic may make: what is asked is whether an ability is taken at all.
    """
    wrong = WRONG if ability.is_plain else DOUBTFUL
    if tried.failure is not None:
        if isinstance(tried.failure, (UsageFailure, NoRoom)):
            return UNTRIED
        return REFUSED if refuses(tried.failure) else wrong
    run = tried.run
    assert run is not None
    assert run.measured is not None
    findings = run.measured.comparison.findings.values()
    is_clean = all(one.severity != ERROR for one in run.memory)
    if tried.matches or (is_clean and all(one.max_ratio <= LAMBDA for one in findings)):
        return RIGHT
    if out_of_range(tried.problem.case, draw(tried.problem.case, tried.problem.case.device)):
        return UNTRIED
    right = {one.name for one in findings if not one.mismatched}
    return WRONG if right & set(ability.shown_by) else wrong
