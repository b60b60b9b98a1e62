"""Experiment: what all executions of one probe have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..frontends import COMPILED, CUDA, CUDA_ON_CPU
from ..inputs.draw import draw, outputs_of
from ..inputs.guard_bands import ORDINARY
from ..inputs.tensor_layouts import Inputs, effective_values, place
from ..model.assignment import Assigned, planned_runs
from ..model.case import DOTS, Case
from ..model.intermediates import DERIVED
from ..numerics.walk import LargeRuns
from ..reference import manual_attention_backward
from ..runtime.run import Outcome
from ..targets.find import Target

if TYPE_CHECKING:
    from ..inputs.saved import Saved
    from ..runtime.arithmetic import Dots

MOST_INTERPRETED = 1 << 18
"""Elements of all score matrices together up to which a target in the interpreter is followed, or shown wholly."""
_STAGES = ("target", "reference", "compare", "diagnose")


class Tick(Protocol):
    """Told what is being done, the fraction of it done, and the layout that it is done for, where there is one."""

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None: ...


def silent(stage: str, fraction: float, layout: str = "") -> None:
    """Tells nobody."""


class Stopwatch:
    """How long each stage of a probe took, and how often it was begun and ended."""

    def __init__(self) -> None:
        self.seconds, self.laps = dict.fromkeys(_STAGES, 0.0), dict.fromkeys(_STAGES, 0)

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
    saved: Saved | None = None
    """The file that the values come from."""
    tick: Tick = silent
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    fill: str = ORDINARY
    """What the guard bands hold."""
    unwritten: float = math.nan
    """What outputs hold before a run."""
    command: str = ""
    """The command line that repeats the probe; "" where there is none."""
    first: Outcome | None = None
    """What the first execution came to; None before it."""
    backends: frozenset[str] = frozenset()
    """What was seen to run the target's kernels, of BACKENDS."""
    dots: tuple[Dots, ...] = ()
    """How its dots were seen to multiply float32."""
    large: LargeRuns = field(default_factory=LargeRuns)

    @property
    def is_cuda(self) -> bool:
        """Whether CUDA kernels of a source were seen, which know their memory by its address alone."""
        return bool(self.backends & {CUDA, CUDA_ON_CPU})

    def after(self, outcomes: Iterable[Outcome]) -> Experiment:
        """The experiment with what these executions showed of the target."""
        first, backends, dots = self.first, self.backends, dict.fromkeys(self.dots)
        for outcome in outcomes:
            first = first or outcome
            backends |= outcome.backends
            dots |= dict.fromkeys(outcome.dots)
        return replace(self, first=first, backends=backends, dots=tuple(dots))

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
    if saved is None:
        values = draw(case, case.device)
    else:
        from ..inputs.saved import values_of

        values = values_of(saved, case)
    values = {name: value.to(case.device) for name, value in values.items()}
    large = LargeRuns(several=len(layouts_of(case)) > 1 or case.repeat > 1)
    return Experiment(case, target, reference, values, saved, tick, command=command, large=large)


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
    kept = dict(effective_values(values, assigned))
    if any(layout == "expanded" and tensor != "do" for tensor, layout in assigned):
        kept.pop("o", None)
        kept.pop("lse", None)
    return kept


def derived(experiment: Experiment, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """O, LSE and delta of the reference, as far as the target takes them."""
    case, takes = experiment.case, experiment.target.takes
    if not DERIVED.keys() & takes.keys():
        return {}
    known: dict[str, Any] = {name: value for name, value in values.items() if name not in DERIVED}
    for option in ("family", "causal", "scale", "window", "softcap", "align", "dropout"):
        known[option] = getattr(case, option)
    results = manual_attention_backward(**known, head_tile=1, matrices=False)
    own, found = values["q"].dtype, {}
    for name, key in DERIVED.items():
        if name in takes:
            found[name] = results[key].to(own if name == "o" else torch.promote_types(own, torch.float32))
    return found


# --- how its dots multiply float32


def declared_way(of: Experiment) -> str | None:
    """What the command line says, or what a target was told that asks; None where nobody said anything."""
    return of.case.dots or ("ieee" if "dots" in of.target.takes else None)


def _read(of: Experiment) -> list[Dots]:
    """What decides: kernels whose dots were read; torch's setting where there are none, or where it is TF32."""
    kernels = [dots for dots in of.dots if not dots.is_torch]
    if COMPILED in of.backends and not kernels:
        return []
    return kernels + [dots for dots in of.dots if dots.is_torch and (not kernels or dots.way != "ieee")]


def dots_of(of: Experiment) -> str:
    """One of DOTS, by which all is judged: a gradient is as coarse as the coarsest dot that it comes from."""
    if of.case.dtype != "float32":
        return "ieee"
    if of.case.device == "cpu":  # where nothing multiplies otherwise by itself
        return of.case.dots or "ieee"
    from ..runtime.arithmetic import coarsest

    read = _read(of)
    return declared_way(of) or (coarsest(read) if read or COMPILED not in of.backends else "tf32")


def coarser_dots(of: Experiment) -> list[Dots]:
    """The dots that are coarser than what is declared."""
    declared = declared_way(of)
    if of.case.device == "cpu" or of.case.dtype != "float32" or declared is None:
        return []
    return [dots for dots in _read(of) if DOTS.index(dots.way) > DOTS.index(declared)]


def sentences_of_dots(of: Experiment) -> Iterator[str]:
    """By which arithmetic all is judged, and how that is known. Nothing where there is no choice."""
    case, way = of.case, dots_of(of)
    if case.dtype != "float32":
        if case.dots not in (None, way):
            yield f"--dots {case.dots} is for float32: products of {case.dtype} are exact in float32"
    elif case.device != "cpu":
        yield f"dots are judged as {way}, {_why(of)}"
    elif way != "ieee":
        yield f"dots are judged as {way}, as --dots says; a CPU multiplies in IEEE by itself"


def _why(of: Experiment) -> str:
    """How that is known of kernels on a GPU."""
    read = dots_in_words(_read(of))
    if declared_way(of) is not None:
        said = "as --dots says" if of.case.dots is not None else "which the target is told"
        return f"{said}; read: {read}" if read else f"{said}; they could not be read"
    if read:
        return f"as was read: {read}"
    if COMPILED in of.backends:
        return "Triton's default: what its kernels were compiled to could not be read"
    return "since nothing was seen that says otherwise; --dots tf32 allows TF32"


def dots_in_words(found: Sequence[Dots]) -> str:
    """Where which way was read, the coarsest first: `tf32 in dq_kernel (kernel.py:81, 90); ieee in forward_kernel`."""
    places: dict[str, dict[str, None]] = {}
    for dots in sorted(found, key=lambda dots: -DOTS.index(dots.way)):
        place = dots.by
        if dots.lines and dots.way != "ieee":
            place += f" ({Path(dots.file).name}:{', '.join(map(str, dots.lines))})"
        places.setdefault(dots.way, {})[place] = None
    return "; ".join(f"{way} in {', '.join(those)}" for way, those in places.items())
