"""Chains the stages: probe(case, target) -> Report."""

from __future__ import annotations

import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .accumulators import Coarser, explained
from .case import Case
from .compare import Comparison, attention_of, compare
from .draw import draw
from .failures import ReferenceFailure, TargetFailure
from .inside import Examiner, look_inside
from .invariants import Invariant, identities
from .layouts import DEFAULT_RUNS, UNIT_RUN, Inputs, effective_values, place
from .locate import locate, zeros_by_design
from .precision import precision_of
from .provenance import triton_cache
from .recover import obstacle, recoverable
from .recovery import Recovery
from .reference import Attention, Tile, evaluate
from .run import Outcome, run_target
from .symmetry import agreement, doubled, permuted
from .taps import Tap, parse_tap, propose
from .targets import Target
from .trace import Trace
from .verdict import MISMATCH, Measured, Provenance, Report, Run

if TYPE_CHECKING:
    from torch import Tensor

Assigned = tuple[tuple[str, str], ...]
Tick = Callable[[str, float], None]
"""Told what is being done, and the fraction of it done."""


@dataclass
class _Session:
    """What the runs of one probe share."""

    case: Case
    target: Target
    reference: Target | None
    tick: Tick
    taps: tuple[Tap, ...]
    values: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("target", "reference", "compare"), 0.0))
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds to a stage's seconds; what a stage inside it takes is the inner one's alone."""
        start, inner = time.perf_counter(), sum(self.seconds.values())
        yield
        self.seconds[stage] += time.perf_counter() - start - (sum(self.seconds.values()) - inner)

    def evaluate(self, x: Attention, tile: Tile, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The built-in reference, timed."""
        with self.timed("reference"):
            return evaluate(x, tile, given)


def probe(
    case: Case,
    target: Target,
    *,
    reference: Target | None = None,
    reproduce: str = "",
    tick: Tick = lambda stage, fraction: None,
) -> Report:
    """Runs a target on a case under each layout, beside the reference, and says where it goes wrong.

    Args:
        case: with its device resolved to "cpu" or "cuda".
        reference: a user's own, in place of the built-in one; audited by the identities that it should keep.
        reproduce: the command line to print.

    Raises:
        UsageFailure: the case uses what the target does not take.
        TargetFailure: the target could not be run, or nothing could be compared.
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    session = _Session(case, target, reference, tick, tuple(parse_tap(word) for word in case.taps))
    session.values = {name: value.to(case.device) for name, value in draw(case).items()}
    layouts: tuple[Assigned, ...] = (case.layouts,) if case.layouts else DEFAULT_RUNS
    runs = [run for assigned in layouts for run in _runs(session, assigned)]
    runs = _with_symmetries(session, runs)
    runs = _with_insides(session, runs)
    if not any(run.measured for run in runs):
        words = "; ".join(f"{run.layout}: {run.skipped}" for run in runs)
        raise TargetFailure(f"nothing was compared: target {target.name!r} refused every layout ({words})")
    return Report(
        case=replace(case, dots=_dots(session)),
        provenance=_provenance(session),
        environment=environment(case.device),
        runs=tuple(runs),
        notes=(*_notes(case), *session.notes, *_of_taps(session, runs)),
        reproduce=reproduce,
        seconds=session.seconds,
    )


def _runs(session: _Session, assigned: Assigned) -> list[Run]:
    """One layout; and where the target refuses distinct strides, distinct strides with the last one 1."""
    run = _run(session, assigned)
    refused = run.measured is None and run.layout == "distinct" and not session.case.layouts
    return [run, _run(session, UNIT_RUN)] if refused else [run]


def _run(session: _Session, assigned: Assigned) -> Run:
    inputs = _inputs(session, session.values, assigned)
    outcome = _outcome(session, inputs)
    if outcome.trace is None:
        return Run(inputs.layout, assigned, None, outcome.refused)
    measured = _measure(session, inputs, outcome.trace)
    for _ in range(1, session.case.repeat):
        # Laid out afresh: a target may have written over its inputs.
        measured = _repeated(session, _inputs(session, session.values, assigned), measured)
    return Run(inputs.layout, assigned, measured, None)


def _inputs(session: _Session, values: Mapping[str, Tensor], assigned: Assigned) -> Inputs:
    """The values in a layout, with O, LSE and delta of the reference where the target takes them."""
    values = effective_values(values, assigned)
    return place({**values, **_derived(session, values)}, assigned)


def _derived(session: _Session, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    wanted = {"o": "O", "lse": "LSE", "delta": "delta"}
    taken = {name: key for name, key in wanted.items() if name in session.target.takes}
    if not taken:
        return {}
    from .reference import manual_attention_backward

    case = session.case
    known: dict[str, Any] = {name: value for name, value in values.items() if name not in wanted}
    results = manual_attention_backward(
        **known, family=case.family, causal=case.causal, scale=case.scale, window=case.window, softcap=case.softcap,
        align=case.align, dropout=case.dropout, head_tile=1, matrices=False,
    )  # fmt: skip
    return {
        name: results[key].to(values["q"].dtype) if name == "o" else results[key].float() for name, key in taken.items()
    }


def _outcome(session: _Session, inputs: Inputs) -> Outcome:
    session.tick(f"run {len(session.outcomes) + 1}, {session.target.name}, {inputs.layout}", 0.0)
    with session.timed("target"):
        outcome = run_target(session.target, session.case, inputs, session.taps)
    session.outcomes.append(outcome)
    return outcome


def _measure(session: _Session, inputs: Inputs, trace: Trace, recovery: Recovery | None = None) -> Measured:
    case = session.case
    x = attention_of(case, inputs.values)
    reference = _reference_trace(session, inputs)
    with session.timed("compare"):
        comparison = compare(
            case, x, trace, precision_of(case.dtype, _dots(session)), reference=reference, recovery=recovery,
            evaluate=session.evaluate,
            tick=lambda fraction: session.tick(f"comparing {inputs.layout}", fraction),
        )  # fmt: skip
        comparison, coarser = _explained(case, x, trace, comparison)
        invariants = identities(case, x, trace, comparison)
        _audit(session, invariants)
        return Measured(x, trace, comparison, locate(case, x, trace, comparison), tuple(invariants), coarser)


def _explained(
    case: Case, x: Attention, trace: Trace, comparison: Comparison
) -> tuple[Comparison, tuple[Coarser, ...]]:
    """Which sums prove to be kept in 16 bits; they are judged as such, unless the case is strict."""
    if comparison.matches:
        return comparison, ()
    lenient, coarser = explained(case, x, trace, comparison)
    return (comparison if case.strict else lenient), coarser


def _reference_trace(session: _Session, inputs: Inputs) -> Trace | None:
    """The results of a user's own reference, on the same values in float64."""
    if session.reference is None:
        return None
    wide = {name: value if name == "seqlens" else value.double() for name, value in inputs.values.items()}
    with session.timed("reference"):
        outcome = run_target(session.reference, session.case, place(wide, ()))
    return outcome.trace


def _audit(session: _Session, invariants: list[Invariant]) -> None:
    """A reference that breaks an identity may judge nobody."""
    for invariant in invariants:
        if invariant.of == "reference" and not invariant.holds:
            name = session.reference.name if session.reference else "the built-in reference"
            raise ReferenceFailure(
                f"the verdict is about the reference: {name} breaks {invariant.name} "
                f"(off by {invariant.residual:.3g}, allowed {invariant.budget:.3g})",
                "a reference is judged before it judges; correct it, or compute it in float64",
            )


def _repeated(session: _Session, inputs: Inputs, measured: Measured) -> Measured:
    """The first run, or the repeat that went wrong where the first did not."""
    trace = _outcome(session, inputs).trace
    if trace is None:
        raise TargetFailure(f"target {session.target.name!r} refused {inputs.layout} in a repeat, after accepting it")
    again = _measure(session, inputs, trace)
    worse = again if measured.matches and not again.matches else measured
    if not _summable(measured):
        return worse
    invariant = agreement("repeat", session.case, measured.trace, trace, measured.comparison)
    return replace(worse, invariants=(*worse.invariants, invariant))


def _with_symmetries(session: _Session, runs: list[Run]) -> list[Run]:
    """I8 and I9 from one more run of the first layout, I10 from contiguous and distinct, of the same values."""
    first = next((at for at, run in enumerate(runs) if run.measured is not None and _summable(run.measured)), None)
    if first is None:
        return runs
    invariants, wrong = _linear_and_permuted(session, runs[first])
    runs[first] = _with(runs[first], invariants)
    measured = runs[first].measured
    for at, run in enumerate(runs):
        if measured and run.measured and runs[first].layout == "contiguous" and run.layout.startswith("distinct"):
            same = agreement("I10", session.case, measured.trace, run.measured.trace, measured.comparison)
            runs[at] = _with(run, [same])
    return [*runs, *wrong]


def _summable(measured: Measured) -> bool:
    """Whether two runs can be held against each other: not where only P, dP or dS, which are quadratic, came."""
    return bool(measured.comparison.bounds.keys() & measured.trace.values.keys())


def _with(run: Run, invariants: list[Invariant]) -> Run:
    assert run.measured is not None
    return replace(run, measured=replace(run.measured, invariants=(*run.measured.invariants, *invariants)))


def _linear_and_permuted(session: _Session, run: Run) -> tuple[list[Invariant], list[Run]]:
    """dO doubled and heads and batches permuted, in one run; each alone only where the two together disagree.

    Where neither alone disagrees the target is not the same from call to call, and the run that showed it stands. The
    first run that disagrees is compared with its own reference, and returned if it is wrong.
    """
    together, both = _symmetric(session, run, "I8", factor=2.0, reverse=True)
    if together.holds:
        return [together, replace(together, key="I9")], []
    linear, twice = _symmetric(session, run, "I8", factor=2.0, reverse=False)
    permutes, reverse = _symmetric(session, run, "I9", factor=1.0, reverse=True)
    wrong = [again for again in (both, twice, reverse) if again is not None and again.verdict == MISMATCH]
    return [together if linear.holds and permutes.holds else linear, permutes], wrong[:1]


def _symmetric(session: _Session, run: Run, key: str, *, factor: float, reverse: bool) -> tuple[Invariant, Run | None]:
    """An identity between a run and a second one; and where it is broken, the second one, compared."""
    values: Mapping[str, Tensor] = effective_values(session.values, run.assigned)
    values = doubled(values) if factor != 1.0 else values
    values = permuted(values, session.case) if reverse else values
    # Values that were expanded are so already; laid out so once more they would lose the factor.
    assigned = tuple((tensor, layout) for tensor, layout in run.assigned if layout != "expanded")
    inputs = place({**values, **_derived(session, values)}, assigned)
    trace = _accepted(session, inputs)
    assert run.measured is not None
    first = run.measured
    invariant = agreement(key, session.case, first.trace, trace, first.comparison, factor=factor, reverse=reverse)
    if invariant.holds:
        return invariant, None
    what = " and ".join((["dO doubled"] if factor != 1.0 else []) + (["heads reversed"] if reverse else []))
    return invariant, Run(f"{run.layout}, {what}", assigned, _measure(session, inputs, trace), None)


def _accepted(session: _Session, inputs: Inputs) -> Trace:
    """A further run in a layout that the target accepted before."""
    trace = _outcome(session, inputs).trace
    if trace is None:
        raise TargetFailure(f"target {session.target.name!r} refused {inputs.layout} after accepting it before")
    return trace


def _with_insides(session: _Session, runs: list[Run]) -> list[Run]:
    """Looks into a black box under the first layout, and under the first that fails where that is another."""
    chosen = [runs.index(run) for run in runs if run.measured is not None][:1]
    chosen += [runs.index(run) for run in runs if run.verdict == MISMATCH][:1]
    return [_with_inside(session, run) if at in chosen else run for at, run in enumerate(runs)]


def _with_inside(session: _Session, run: Run) -> Run:
    """A run whose target was looked into, where it can be: a layout of repeated values holds no one-hot rows."""
    if not session.case.recover or run.measured is None or not recoverable(run.measured.trace):
        return run
    if words := obstacle(session.case):
        session.notes += [f"P and dS are not recovered: {words}"] if not session.notes else []
        return run
    if any(layout == "expanded" for _, layout in run.assigned):
        words = f"P and dS are not recovered in {run.layout}: a layout that repeats values holds no one-hot rows"
        session.notes += [words] if session.case.layouts else []
        return run
    examiner = Examiner(
        session.case,
        lambda assigned: lambda case, values, first: _answer(session, case, values, first, assigned),
        lambda values, trace, recovery: _measure(session, place(values, ()), trace, recovery),
        run.measured,
        _inputs(session, session.values, run.assigned).tensors,
    )
    try:
        with session.timed("compare"):
            return replace(run, inside=look_inside(examiner, session.values, run.assigned))
    except TargetFailure as failure:
        # The run itself is measured, and stands.
        session.notes.append(f"P and dS are not recovered in {run.layout}: {failure}")
        return run


def _answer(
    session: _Session, case: Case, values: Mapping[str, Tensor], first: Mapping[str, Tensor], assigned: Assigned
) -> Trace:
    """The target's results on several probes; those of the first in O, LSE and delta are those of all."""
    times = case.batch // session.case.batch
    derived = {name: value.repeat(times, *[1] * (value.dim() - 1)) for name, value in _derived(session, first).items()}
    inputs = place({**values, **derived}, assigned)
    session.tick(f"looking inside {session.target.name}, {inputs.layout}", 0.0)
    with session.timed("target"):
        outcome = run_target(session.target, case, inputs)
    session.outcomes.append(outcome)
    if outcome.trace is None:
        raise TargetFailure(f"target {session.target.name!r} refused {inputs.layout} after accepting it before")
    return outcome.trace


def _dots(session: _Session) -> str:
    """What was asked for; else TF32 for compiled float32 Triton kernels that nobody told otherwise: their default."""
    if (
        session.case.device == "cpu"
    ):  # TF32 is an arithmetic of GPUs; the interpreter multiplies in IEEE whatever it is told
        return "ieee"
    if session.case.dots is not None or "dots" in session.target.takes:
        return session.case.dots or "ieee"
    compiled = any(outcome.kernels and not outcome.interpreted for outcome in session.outcomes)
    return "tf32" if compiled and session.case.dtype == "float32" else "ieee"


def _notes(case: Case) -> list[str]:
    notes = zeros_by_design(case)
    if case.dots == "tf32" and case.device == "cpu":
        notes.insert(0, "--dots tf32 has no effect here: TF32 is an arithmetic of GPUs, so IEEE's budget was applied")
    return notes


def _of_taps(session: _Session, runs: list[Run]) -> list[str]:
    """What a reader should know of the taps; where none is set and the target hides P or dS, which there could be."""
    notes = list(dict.fromkeys(note for outcome in session.outcomes for note in outcome.notes))
    hidden = any(run.measured and not {"P", "dS"} <= run.measured.trace.values.keys() for run in runs)
    if session.taps or not hidden:
        return notes
    words = propose([kernel for outcome in session.outcomes[:1] for kernel in outcome.launched])
    one_each = {word.partition("=")[0]: word for word in reversed(words)}
    flags = " ".join(f"--tap {shlex.quote(word)}" for word in reversed(one_each.values()))
    return [*notes, *([f"what its kernels hold can be seen: {flags}"] if words else [])]


def _provenance(session: _Session) -> Provenance:
    kernels = tuple(dict.fromkeys(kernel for outcome in session.outcomes for kernel in outcome.kernels))
    interpreted = any(outcome.interpreted for outcome in session.outcomes)
    backend = "torch" if not kernels else "triton-interpreter" if interpreted else "triton"
    reference = session.reference.name if session.reference else "gradprobe.reference, float64"
    cache = triton_cache() if backend == "triton" else ""
    return Provenance(session.target.name, backend, session.target.source, kernels, reference, cache)


def environment(device: str) -> dict[str, str]:
    """Versions and the device, in words."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from . import __version__

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    name = torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()})"
    return {
        "gradprobe": __version__, "python": platform.python_version(), "torch": torch.__version__, "triton": triton,
        "cuda": torch.version.cuda or "none", "device": name,
    }  # fmt: skip
