"""What the runs of one probe share, and one run measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..budgets.precision import precision_of
from ..cases.case import OUTPUTS, Case
from ..cases.guards import ORDINARY
from ..cases.layouts import Assigned, Inputs, effective_values, place
from ..cases.outputs import outputs_of
from ..cases.saved import Saved
from ..cases.shapes import PLAIN
from ..failures import KernelStopped, TargetFailure, UsageFailure
from ..inside.recovery import Recovery
from ..judging.accumulators import Coarser, explained
from ..judging.compare import Comparison, Evaluate, attention_of, compare
from ..judging.invariants import identities
from ..judging.locate import locate
from ..judging.measured import Measured
from ..judging.operands import Operand, rounded_operand
from ..judging.range import out_of_range
from ..judging.strays import Stray
from ..reference import Attention, Tile, evaluate
from ..running.run import Outcome, run_target
from ..running.taps import Tap
from ..running.trace import Trace, expected_shapes
from ..targets.find import Target
from .audit import refuse_broken, refuse_other_formulas
from .observe import WatchedRun, observe

if TYPE_CHECKING:
    from torch import Tensor

DERIVED = {"o": "O", "lse": "LSE", "delta": "delta"}
"""What a backward may be given of its forward, and what that is."""
STAGES = ("target", "reference", "compare", "diagnose")


class Tick(Protocol):
    """Told what is being done, the fraction of it done, and the layout that it is done for, where there is one."""

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None: ...


def silent(stage: str, fraction: float, layout: str = "") -> None:
    """For what nobody waits for."""


@dataclass
class Session:
    """What the runs of one probe share."""

    case: Case
    target: Target
    reference: Target | None
    tick: Tick
    taps: tuple[Tap, ...]
    saved: Saved | None = None
    fill: str = ORDINARY
    """What the guard bands hold."""
    unwritten: float = math.nan
    """What outputs hold before a run."""
    values: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    outcomes: list[Outcome] = field(default_factory=list)
    strays: list[tuple[str, tuple[Stray, ...]]] = field(default_factory=list)
    """(layout, what it did to memory) of every run."""
    has_cuda: bool = False
    """Whether the target launched CUDA kernels of a source."""
    notes: list[str] = field(default_factory=list)
    configured: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of runs in another configuration, by their name: the autotuned kernel, and the number of its configuration."""
    command: tuple[str, ...] = ()
    """The words of the command line that repeats the probe; none where there is no such line."""

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

    def placed(self, values: Mapping[str, Tensor], assigned: Assigned) -> Inputs:
        """Values laid out; `as-saved` as they lay in the file they come from."""
        placements = self.saved.placements if self.saved else None
        return place(values, assigned, placements, self.fill, self.case.shapes)


def refuse_out_of_range(session: Session) -> None:
    """Does nothing where right arithmetic on the session's values stays within the range of its numbers.

    Raises:
        UsageFailure: it does not, so that a right kernel may give NaN.
    """
    if beyond := out_of_range(session.case, session.values):
        of = f"scale {session.case.scale:g}, inputs of up to {_largest(session.values):.3g}"
        raise UsageFailure(f"{beyond} ({of})", "make --scale or the inputs smaller")


def _largest(values: Mapping[str, Tensor]) -> float:
    return max(float(values[name].nan_to_num(0.0, 0.0, 0.0).abs().max()) for name in ("q", "k", "v", "do"))


def inputs_of(session: Session, values: Mapping[str, Tensor], assigned: Assigned) -> Inputs:
    """The values in a layout, with O, LSE and delta of the reference, and outputs, where the target takes them."""
    values = effective(values, assigned)
    outputs = outputs_of(session.case, session.target.outputs, values, session.unwritten)
    return session.placed({**derived(session, values), **values, **outputs}, assigned)


def effective(values: Mapping[str, Tensor], assigned: Assigned) -> dict[str, Tensor]:
    """The values that a layout leaves; O and LSE of a file go where it changes the inputs that they came from."""
    changed = any(layout == "expanded" and tensor != "do" for tensor, layout in assigned)
    left = effective_values(values, assigned)
    return {name: value for name, value in left.items() if not (changed and name in ("o", "lse"))}


def derived(session: Session, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """O, LSE and delta of the reference, as far as the target takes them."""
    taken = {name: key for name, key in DERIVED.items() if name in session.target.takes}
    if not taken:
        return {}
    import torch

    from ..reference import manual_attention_backward

    case = session.case
    known: dict[str, Any] = {name: value for name, value in values.items() if name not in DERIVED}
    results = manual_attention_backward(
        **known, family=case.family, causal=case.causal, scale=case.scale, window=case.window, softcap=case.softcap,
        align=case.align, dropout=case.dropout, head_tile=1, matrices=False,
    )  # fmt: skip
    own = values["q"].dtype
    return {
        name: results[key].to(own if name == "o" else torch.promote_types(own, torch.float32))
        for name, key in taken.items()
    }


def watched_run(session: Session, inputs: Inputs, schedule: int = 0) -> WatchedRun:
    """One run of the target, noted and timed.

    A target of CUDA sources is run again where only now it shows to be one: what its torch.empty gave is known then.
    """
    session.tick(f"run {len(session.outcomes) + 1}, {session.target.name}, {inputs.layout}", 0.0, inputs.layout)
    with session.timed("target"):
        run = _run(session, inputs, schedule) if session.has_cuda else _first_run(session, inputs, schedule)
    outcome = run.outcome
    session.outcomes.append(outcome)
    session.strays.append((inputs.layout, run.strays))
    session.notes += [words for words in map(_unwatched, run.unwatched) if words not in session.notes]
    if outcome.trace is not None:
        outcome = replace(outcome, trace=_with_forward(session, inputs, outcome.trace))
    return replace(run, outcome=outcome)


def _unwatched(words: str) -> str:
    return f"some accesses of memory could not be watched, by a fault of gradprobe: {words}"


def _first_run(session: Session, inputs: Inputs, schedule: int) -> WatchedRun:
    """A run; the same between guard bands where CUDA kernels of a source ran, or ended what was not between any."""
    try:
        run = _run(session, inputs, schedule)
        session.has_cuda = bool(run.outcome.cuda)
    except KernelStopped:
        session.has_cuda = True
    return _run(session, inputs, schedule) if session.has_cuda else run


def _run(session: Session, inputs: Inputs, schedule: int) -> WatchedRun:
    # Memory of CUDA's allocator often holds zeros in a test and something else in a training run.
    return observe(
        session.target, session.case, inputs, session.taps, fill=session.fill, unwritten=session.unwritten,
        banded=session.case.poison or session.has_cuda, copies=session.has_cuda, schedule=schedule,
    )  # fmt: skip


def _with_forward(session: Session, inputs: Inputs, trace: Trace) -> Trace:
    """A backward's results with the O and LSE that a file gave it: they are parents, and may be what is wrong."""
    given = {"LSE": "lse", "O": "o"}
    own = {
        key: inputs.values[name] for key, name in given.items()
        if session.saved and name in session.saved.values and name in session.target.takes and key not in trace.values
    }  # fmt: skip
    values = {**own, **trace.values}
    order = [name for name in expected_shapes(session.case) if name in values]
    sources = {name: trace.sources.get(name, "exported") for name in order}
    return Trace({name: values[name] for name in order}, sources) if own else trace


def accepted(session: Session, inputs: Inputs) -> Trace:
    """A further run in a layout that the target accepted before."""
    trace = watched_run(session, inputs).outcome.trace
    if trace is None:
        raise TargetFailure(f"target {session.target.name!r} refused {inputs.layout} after accepting it before")
    return trace


def measure(
    session: Session, inputs: Inputs, trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
) -> Measured:
    """A trace compared, its identities tried, its first mismatch located.

    Args:
        coarse: whether by an arithmetic that is coarser than the contract.

    Raises:
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    case = session.case
    x = attention_of(case, inputs.values)
    reference = _reference_trace(session, inputs, x)

    precision = precision_of(case.dtype, dots_of(session))

    def compared(evaluate: Evaluate) -> Comparison:
        words = f"comparing {inputs.layout}"
        return compare(
            case, x, trace, precision.coarser if coarse else precision, reference=reference, recovery=recovery,
            evaluate=evaluate, tick=lambda fraction: session.tick(words, fraction, f"{inputs.layout}, compared"),
        )  # fmt: skip

    with session.timed("compare"):
        comparison = compared(session.evaluate)
        coarser: tuple[Coarser | Operand, ...] = ()
        if not comparison.matches and reference is None and not coarse:
            lenient, coarser = _explained(case, x, trace, comparison, compared)
            comparison = comparison if case.strict else lenient
        invariants = identities(case, x, trace, comparison)
        refuse_broken(session.reference, invariants)
        return Measured(x, trace, comparison, locate(case, x, trace, comparison), tuple(invariants), coarser)


def _explained(
    case: Case, x: Attention, trace: Trace, comparison: Comparison, compared: Callable[[Evaluate], Comparison]
) -> tuple[Comparison, tuple[Coarser | Operand, ...]]:
    """The comparison with what proves to be a coarser arithmetic judged as such, and what that is."""
    found = rounded_operand(case, x, trace, comparison, compared)
    if found is not None:
        return found[0], (found[1],)
    return explained(case, x, trace, comparison)


def _reference_trace(session: Session, inputs: Inputs, x: Attention) -> Trace | None:
    """The results of a user's own reference, on the same values in float64; none that departs from the formulas."""
    if session.reference is None:
        return None
    of_others = (*OUTPUTS, *DERIVED)
    values = {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.values.items() if name not in of_others
    }  # fmt: skip
    values |= derived(replace(session, target=session.reference), values)
    wide = values | outputs_of(session.case, session.reference.outputs, values)
    session.tick(f"reference {session.reference.name}", 0.0, f"{inputs.layout}, the reference")
    with session.timed("reference"):
        trace = run_target(session.reference, replace(session.case, shapes=PLAIN), place(wide, ())).trace
        if trace is not None:
            refuse_other_formulas(session.reference, session.case, x, trace, dots_of(session))
    return trace


def dots_of(session: Session) -> str:
    """What was asked for; else TF32 for compiled float32 Triton kernels that nobody told otherwise: their default."""
    # TF32 is an arithmetic of GPUs; the interpreter multiplies in IEEE whatever it is told.
    if session.case.device == "cpu":
        return "ieee"
    if session.case.dots is not None or "dots" in session.target.takes:
        return session.case.dots or "ieee"
    compiled = any(outcome.launched and not outcome.interpreted for outcome in session.outcomes)
    return "tf32" if compiled and session.case.dtype == "float32" else "ieee"
