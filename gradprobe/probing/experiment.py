"""Experiment: what all executions of one probe have in common, and the inputs of one of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..auditing.refusal import refuse_broken, refuse_other_formulas
from ..inputs.draw import draw, outputs_of
from ..inputs.guard_bands import ORDINARY
from ..inputs.layouts import Inputs, effective_values, place
from ..inputs.saved import Saved, values_of
from ..model.assignment import OUTPUTS, PLAIN, Assigned, planned_runs
from ..model.case import Case
from ..model.intermediates import DERIVED
from ..model.mechanisms import gathered
from ..numerics.budget import Recovery
from ..numerics.by_block import ByBlock
from ..numerics.coarser import Coarser, CoarserDots, explained
from ..numerics.compare import Comparison, Evaluate, attention_of, compare
from ..numerics.conventions import Convention, in_other_conventions
from ..numerics.evenness import HeadScatter, heads_by_result
from ..numerics.evidence import Measured
from ..numerics.float64 import SplitCounts, multiplying
from ..numerics.head_errors import evenness
from ..numerics.identities import identities
from ..numerics.locate import locate
from ..numerics.operands import Operand, OperandOfEach, rounded_operand
from ..numerics.precision import Precision, exactly, precision_of
from ..numerics.roundings import Roundings, rounded_besides
from ..numerics.rows import problem_of, rows_of
from ..numerics.sieve import Sieve
from ..reference import Attention, Tile, evaluate, manual_attention_backward
from ..runtime.arithmetic import Dots
from ..runtime.run import Outcome, run_target
from ..runtime.spread import AllocationSpread
from ..runtime.taps import Tap, parse_tap
from ..runtime.trace import Trace
from ..targets.find import Target
from .dots import coarser_dots, declared_way, dots_in_words, dots_of

STAGES = ("target", "reference", "compare", "diagnose")


class Tick(Protocol):
    """Told what is being done, the fraction of it done, and the layout that it is done for, where there is one."""

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None: ...


def silent(stage: str, fraction: float, layout: str = "") -> None:
    """Tells nobody."""


class Stopwatch:
    """How long each stage of a probe took, and how often it was begun and ended."""

    def __init__(self) -> None:
        self.seconds, self.laps = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds to a stage's seconds; what a stage inside it takes is the inner one's alone."""
        start, inner = time.perf_counter(), sum(self.seconds.values())
        yield
        self.seconds[stage] += time.perf_counter() - start - (sum(self.seconds.values()) - inner)
        self.laps[stage] += 1


@dataclass(frozen=True)
class Experiment:
    """What all executions of one probe have in common."""

    case: Case
    target: Target
    reference: Target | None
    """A user's own; None for the built-in one."""
    values: Mapping[str, Tensor]
    taps: tuple[Tap, ...] = ()
    saved: Saved | None = None
    """The file that the values come from."""
    tick: Tick = silent
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    fill: str = ORDINARY
    """What the guard bands hold."""
    unwritten: float = math.nan
    """What outputs hold before a run."""
    spread: AllocationSpread | None = None
    """How what the target allocates is laid; None leaves it as torch lays it."""
    command: str = ""
    """The command line that repeats the probe; "" where there is none."""
    first: Outcome | None = None
    """What the first execution came to; None before it."""
    cuda: str = ""
    """Where the target's CUDA kernels of a source ran, "cuda" or "cuda-on-cpu"; "" where none was seen."""
    is_compiled: bool = False
    """Whether the target was seen to launch compiled Triton kernels."""
    dots: tuple[Dots, ...] = ()
    """How its dots were seen to multiply float32."""
    sieve: Sieve = field(default_factory=Sieve)
    products: SplitCounts = field(default_factory=SplitCounts)
    """Of float64 matrices."""

    def after(self, outcomes: Iterable[Outcome]) -> Experiment:
        """The experiment with what these executions showed of the target."""
        outcomes = list(outcomes)
        return replace(
            self,
            first=self.first or next(iter(outcomes), None),
            cuda=self.cuda or max((outcome.cuda for outcome in outcomes), default=""),
            is_compiled=self.is_compiled or any(one.launched and not one.interpreted for one in outcomes),
            dots=tuple(dict.fromkeys((*self.dots, *(dots for one in outcomes for dots in one.dots)))),
        )

    def placed(self, values: Mapping[str, Tensor], assigned: Assigned) -> Inputs:
        """Values laid out; `as-saved` as they lay in the file they come from."""
        placements = self.saved.placements if self.saved else None
        return place(values, assigned, placements, self.fill, self.case.shapes)


def experiment_of(
    case: Case,
    target: Target,
    reference: Target | None = None,
    saved: Saved | None = None,
    *,
    tick: Tick = silent,
    command: str = "",
) -> Experiment:
    """An experiment on the values of a case, drawn or those of its file."""
    values = draw(case, case.device) if saved is None else values_of(saved, case)
    on_device = {name: value.to(case.device) for name, value in values.items()}
    taps = tuple(map(parse_tap, case.taps))
    sieve = Sieve(several=len(layouts_of(case)) > 1 or case.repeat > 1)
    return Experiment(case, target, reference, on_device, taps, saved, tick, command=command, sieve=sieve)


def layouts_of(case: Case) -> tuple[Assigned, ...]:
    """The layouts of a case: what each run assigns to each tensor."""
    return planned_runs((case.layouts,) if case.layouts else case.runs, are_saved=case.inputs is not None)


def inputs_of(experiment: Experiment, assigned: Assigned) -> Inputs:
    """The values in a layout, with O, LSE and delta of the reference, and outputs, where the target takes them."""
    values = effective(experiment.values, assigned)
    outputs = outputs_of(experiment.case, experiment.target.outputs, values, experiment.unwritten)
    return experiment.placed({**derived(experiment, values), **values, **outputs}, assigned)


def effective(values: Mapping[str, Tensor], assigned: Assigned) -> dict[str, Tensor]:
    """The values that a run in this layout has: `expanded` repeats some of them.

    Where that changes the inputs that the O and LSE of a file were made of, these two are left out.
    """
    changed = any(layout == "expanded" and tensor != "do" for tensor, layout in assigned)
    left = effective_values(values, assigned)
    return {name: value for name, value in left.items() if not (changed and name in ("o", "lse"))}


def derived(experiment: Experiment, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """O, LSE and delta of the reference, as far as the target takes them."""
    taken = {name: key for name, key in DERIVED.items() if name in experiment.target.takes}
    if not taken:
        return {}
    case = experiment.case
    options = {name: getattr(case, name) for name in ("family", "causal", "scale", "window", "softcap", "align")}
    known: dict[str, Any] = {name: value for name, value in values.items() if name not in DERIVED}
    results = manual_attention_backward(**known, **options, dropout=case.dropout, head_tile=1, matrices=False)
    own = values["q"].dtype
    return {
        name: results[key].to(own if name == "o" else torch.promote_types(own, torch.float32))
        for name, key in taken.items()
    }


def measure(
    experiment: Experiment, inputs: Inputs, trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
) -> Measured:
    """Compares a trace, tries its identities, and locates its first mismatch.

    Args:
        coarse: whether by an arithmetic that is coarser than the contract.

    Raises:
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    rows, stopwatch = rows_of(experiment.case, recovery), experiment.stopwatch
    case = rows.case(experiment.case) if rows else experiment.case
    precision = precision_of(case.dtype, dots_of(experiment))
    precision = exactly(precision) if case.pattern == "dyadic" else precision
    # What is kept for later holds the values alone, not the tensors that the target was given.
    values, layout = inputs.values, inputs.layout
    problem = cache(lambda: problem_of(case, values, rows))
    coarser: tuple[Coarser | Operand | OperandOfEach | Roundings | CoarserDots, ...] = ()
    if of_dots := coarser_dots(experiment):
        coarser += (CoarserDots(declared_way(experiment) or "", dots_in_words(of_dots)),)

    def timed(x: Attention, tile: Tile, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        with stopwatch.timed("reference"):
            return evaluate(x, tile, given)

    def tick(fraction: float) -> None:
        experiment.tick(f"comparing {layout}", fraction, f"{layout}, compared")

    def fast() -> AbstractContextManager[None]:
        return multiplying(values["q"].device, precision, experiment.products)

    def compared(
        evaluate: Evaluate, reference: Trace | None = None, held: Precision | None = None, of: Trace | None = None
    ) -> Comparison:
        x, of, held = problem(), of or trace, held or (precision.coarser if coarse else precision)
        with fast():
            return compare(case, x, of, held, reference=reference, recovery=recovery, evaluate=evaluate, tick=tick)

    def of_trace(other: Trace) -> Comparison:
        return compared(timed, of=other)

    if experiment.reference is None and recovery is None and not coarse:
        with stopwatch.timed("compare"), fast():
            sifted = experiment.sieve.sift(case, values, trace, precision, tick)
        if sifted is not None:
            comparison = sifted.comparison(partial(compared, timed))
            return Measured(problem, trace, comparison, None, tuple(sifted.invariants), coarser)
    reference = _reference_trace(experiment, inputs)
    if rows and reference is not None:
        reference = Trace(rows.results(reference.values), reference.sources)
    by_block = ByBlock(case, values, trace, precision, rows, recovery, coarse, timed)
    with stopwatch.timed("compare"), fast():
        if reference is None and by_block.is_worth_it:
            comparison, invariants = by_block.compared(partial(compared, timed), tick, until_wrong=coarse)
        else:
            comparison = compared(timed, reference)
            invariants = tuple(identities(case, problem(), trace, comparison))
        came, conventions, as_read = trace, tuple[Convention, ...](), None
        if not comparison.matches and reference is None:
            read, found, conventions = in_other_conventions(case, problem(), trace, comparison, of_trace)
            if conventions and case.strict:
                first = None if found.matches else locate(problem(), read, found)
                as_read = Measured(problem, read, found, first, tuple(identities(case, problem(), read, found)))
            elif conventions:
                trace, comparison = read, found
                invariants = tuple(identities(case, problem(), trace, comparison))
        plain = comparison
        heads = (
            {} if reference or coarse or by_block.is_worth_it else heads_by_result(case, problem(), trace, comparison)
        )
        if not comparison.matches and reference is None and not coarse:
            lenient, proved = _judged_coarser(
                case, problem(), trace, comparison, heads, partial(compared, timed), compared
            )
            if proved and not case.strict:
                comparison = lenient
                invariants = tuple(identities(case, problem(), trace, comparison))
            coarser = (*proved, *coarser)
        if comparison.matches:
            invariants = (*invariants, *gathered("evenness", evenness, problem(), trace, plain, heads))
        refuse_broken(experiment.reference, invariants)
        # Of the coarser arithmetic only whether it explains all is asked.
        first = None if comparison.matches or coarse else locate(problem(), trace, comparison)
        unread = None if trace is came else came
        return Measured(problem, trace, comparison, first, invariants, coarser, (), conventions, unread, as_read)


def _judged_coarser(
    case: Case,
    x: Attention,
    trace: Trace,
    plain: Comparison,
    heads: Mapping[str, Sequence[HeadScatter]],
    by_precision: Callable[..., Comparison],
    compared: Callable[[Evaluate], Comparison],
) -> tuple[Comparison, tuple[Coarser | Operand | OperandOfEach | Roundings, ...]]:
    """The comparison by an arithmetic that the target proves to have, and that; what proves most exactly goes first."""
    if (by_operand := rounded_operand(case, x, trace, plain, compared)) is not None:
        return by_operand[0], (by_operand[1],)
    lenient, proved = explained(case, x, trace, plain)
    if not lenient.matches and (
        found := rounded_besides(case, x, trace, plain, heads, lambda held: by_precision(held=held))
    ):
        return found[0], (found[1],)
    return lenient, proved


def _reference_trace(experiment: Experiment, inputs: Inputs) -> Trace | None:
    """The results of a user's own reference on the same values in float64, checked against the formulas."""
    reference, case = experiment.reference, experiment.case
    if reference is None:
        return None
    own = {name: value for name, value in inputs.values.items() if name not in (*OUTPUTS, *DERIVED)}
    values = {name: value.double() if value.is_floating_point() else value for name, value in own.items()}
    values |= derived(replace(experiment, target=reference), values)
    wide = values | outputs_of(case, reference.outputs, values)
    experiment.tick(f"reference {reference.name}", 0.0, f"{inputs.layout}, the reference")
    with experiment.stopwatch.timed("reference"):
        trace = run_target(reference, replace(case, shapes=PLAIN, ranks=None), place(wide, ())).trace
        if trace is not None:
            refuse_other_formulas(reference, case, attention_of(case, inputs.values), trace, dots_of(experiment))
    return trace
