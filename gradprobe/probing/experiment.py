"""Experiment: what all executions of one probe have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..frontends import COMPILED, CUDA, CUDA_ON_CPU
from ..inputs.draw import draw, outputs_of
from ..inputs.guard_bands import ORDINARY
from ..inputs.tensor_layouts import Inputs, effective_values, place
from ..model.assignment import Assigned, planned_runs
from ..model.case import DOTS, Case
from ..model.intermediates import DERIVED
from ..reference import manual_attention_backward
from ..runtime.run import Outcome, Owners, agreed
from ..targets.find import Target

if TYPE_CHECKING:
    from ..inputs.saved import SavedInputs
    from ..numerics.sieve import LargeRuns
    from ..runtime.arithmetic import Dots
    from ..runtime.target_memory import AllocationSpread

# Elements of all score matrices up to which a target in the interpreter is followed, or shown wholly.
MOST_INTERPRETED = 1 << 18
# Told what is being done, which fraction of it, and for which layout, where there is one.
Tick = Callable[..., object]


def silent(stage: str, fraction: float, layout: str = "") -> None: ...


class Stopwatch:
    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("target", "reference", "compare", "diagnose"), 0.0)
        self.laps = dict.fromkeys(self.seconds, 0)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Without what a stage inside it takes."""
        start, inner = time.perf_counter(), sum(self.seconds.values())
        yield
        self.seconds[stage] += time.perf_counter() - start - (sum(self.seconds.values()) - inner)
        self.laps[stage] += 1


@dataclass(frozen=True)
class Experiment:
    case: Case
    target: Target
    reference: Target | None
    values: Mapping[str, Tensor]
    saved: SavedInputs | None = None
    tick: Tick = silent
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    fill: str = ORDINARY
    unwritten: float = math.nan
    spread: AllocationSpread | None = None
    command: str = ""
    first: Outcome | None = None
    backends: frozenset[str] = frozenset()  # what was seen to run the target's kernels
    dots: tuple[Dots, ...] = ()
    large: list[LargeRuns] = field(default_factory=list)  # once there is one
    owners: Owners = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        return bool(self.backends & {CUDA, CUDA_ON_CPU})

    def after(self, outcomes: Iterable[Outcome]) -> Experiment:
        first, backends, dots = self.first, self.backends, dict.fromkeys(self.dots)
        outcomes = list(outcomes)
        owners = agreed([self.owners, *map(attrgetter("owners"), outcomes)])
        for outcome in outcomes:
            first = first or outcome
            backends |= outcome.backends
            dots |= dict.fromkeys(outcome.dots)
        return replace(self, first=first, backends=backends, dots=tuple(dots), owners=owners)


def experiment_of(
    case: Case, target: Target, reference: Target | None = None, saved: SavedInputs | None = None,
    *, tick: Tick = silent, command: str = "",
) -> Experiment:  # fmt: skip
    if saved is None:
        values = draw(case, case.device)
    else:
        from ..inputs.saved import values_of

        values = values_of(saved, case)
    values = {name: value.to(case.device) for name, value in values.items()}
    return Experiment(case, target, reference, values, saved, tick, command=command)


def layouts_of(case: Case) -> tuple[Assigned, ...]:
    asked = (case.layouts,) if case.layouts else case.runs
    return planned_runs(asked, are_saved=case.inputs is not None)


def inputs_of(experiment: Experiment, assigned: Assigned) -> Inputs:
    """The values in a layout, with what the target takes of the reference, and outputs."""
    values, case = effective(experiment.values, assigned), experiment.case
    saved = experiment.saved
    outputs = outputs_of(case, experiment.target.outputs, values, experiment.unwritten)
    everything = {**derived(experiment, values), **values, **outputs}
    placements = saved.placements if saved else None
    return place(everything, assigned, placements, experiment.fill, case.shapes)


def effective(values: Mapping[str, Tensor], assigned: Assigned) -> dict[str, Tensor]:
    """The values in a layout: `expanded` repeats some, which a file's O and LSE do not fit."""
    kept = dict(effective_values(values, assigned))
    if "expanded" in {layout for tensor, layout in assigned if tensor != "do"}:
        kept.pop("o", None)
        kept.pop("lse", None)
    return kept


def derived(experiment: Experiment, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    wanted = [name for name in DERIVED if name in experiment.target.takes]
    if not wanted:
        return {}
    known: dict[str, Any] = {name: values[name] for name in values.keys() - DERIVED.keys()}
    for option in ("family", "causal", "scale", "window", "softcap", "align", "dropout"):
        known[option] = getattr(experiment.case, option)
    results = manual_attention_backward(**known, head_tile=1, matrices=False)
    own = values["q"].dtype
    wide = torch.promote_types(own, torch.float32)
    return {name: results[DERIVED[name]].to(own if name == "o" else wide) for name in wanted}


# --- how its dots multiply float32


def declared_way(of: Experiment) -> str | None:
    return of.case.dots or ("ieee" if "dots" in of.target.takes else None)


def _read(of: Experiment) -> list[Dots]:
    """What decides, the coarsest first: kernels' dots; torch's without any, or where it is TF32."""
    has_kernels = not all(map(attrgetter("is_torch"), of.dots))
    if COMPILED in of.backends and not has_kernels:
        return []
    kept: list[Dots] = []
    for dots in of.dots:
        if not (dots.is_torch and has_kernels and dots.way == "ieee"):
            kept.append(dots)
    return sorted(kept, key=lambda dots: -DOTS.index(dots.way))


def dots_of(of: Experiment) -> str:
    """One of DOTS, by which all is judged: the coarsest that a gradient comes from."""
    if of.case.dtype != "float32":
        return "ieee"
    if of.case.device == "cpu":  # where nothing multiplies otherwise by itself
        return of.case.dots or "ieee"
    unread = "tf32" if COMPILED in of.backends else "ieee"
    return declared_way(of) or next(map(attrgetter("way"), _read(of)), unread)


def coarser_dots(of: Experiment) -> list[Dots]:
    declared = declared_way(of)
    if of.case.device == "cpu" or of.case.dtype != "float32" or declared is None:
        return []
    return [dots for dots in _read(of) if DOTS.index(dots.way) > DOTS.index(declared)]


def dots_sentence(of: Experiment) -> str:
    """By which arithmetic all is judged, and why; "" where there is no choice."""
    case, way, read = of.case, dots_of(of), dots_in_words(_read(of))
    if case.dots not in (None, way):
        return (
            f"--dots {case.dots} is for float32: products of {case.dtype} are exact in float32"
        )
    if case.dtype != "float32" or (case.device == "cpu" and way == "ieee"):
        return ""
    why = f"as was read: {read}" if read else "since nothing was read that says otherwise"
    if declared_way(of) is not None:
        why = "as --dots says" if case.dots is not None else "which the target is told"
        why += f"; read: {read}" if read else ""
    return f"dots are judged as {way}, {why}"


def dots_in_words(found: Sequence[Dots]) -> str:
    """Where which way was read: `tf32 in dq_kernel (kernel.py:81, 90); ieee in forward_kernel`."""
    places: dict[str, dict[str, None]] = {}
    for dots in found:
        place = dots.by
        if dots.lines and dots.way != "ieee":
            place += f" ({Path(dots.file).name}:{', '.join(map(str, dots.lines))})"
        places.setdefault(dots.way, {})[place] = None
    return "; ".join(f"{way} in {', '.join(those)}" for way, those in places.items())
