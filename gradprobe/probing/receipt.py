"""What really ran, on what, and what a reader should know of it."""

from __future__ import annotations

import platform
import shlex

from ..cases.case import Case
from ..judging.locate import zeros_by_design
from ..running.taps import propose
from ..targets.provenance import triton_cache
from ..verdict import Provenance, Run
from .session import Session


def notes_of(session: Session, runs: list[Run]) -> tuple[str, ...]:
    """Sentences about the case, what was skipped, and the taps."""
    return (
        *_of_case(session.case),
        *_of_surroundings(session),
        *_of_configurations(session),
        *session.notes,
        *_of_taps(session, runs),
    )


def _of_surroundings(session: Session) -> tuple[str, ...]:
    words = session.target.around.words
    return (f"the target changes, for all of its process, {words}: it is judged without",) if words else ()


def _of_configurations(session: Session) -> tuple[str, ...]:
    """Which configurations of autotuned kernels ran, where none was chosen by time."""
    ran = (configuration.sentence for outcome in session.outcomes for configuration in outcome.configurations)
    return tuple(dict.fromkeys(ran))


def _of_case(case: Case) -> list[str]:
    notes = zeros_by_design(case)
    if case.inputs is not None:
        notes.insert(0, f"the values are those of {case.inputs}")
    if case.dots == "tf32" and case.device == "cpu":
        notes.insert(0, "--dots tf32 has no effect here: TF32 is an arithmetic of GPUs, so IEEE's budget was applied")
    return notes


def _of_taps(session: Session, runs: list[Run]) -> list[str]:
    """What a reader should know of the taps; where none is set and the target hides P or dS, which there could be."""
    notes = list(dict.fromkeys(note for outcome in session.outcomes for note in outcome.notes))
    hidden = any(run.measured and not {"P", "dS"} <= run.measured.trace.values.keys() for run in runs)
    if session.taps or not hidden:
        return notes
    words = propose([kernel for outcome in session.outcomes[:1] for kernel in outcome.launched])
    one_each = {word.partition("=")[0]: word for word in reversed(words)}
    flags = " ".join(f"--tap {shlex.quote(word)}" for word in reversed(one_each.values()))
    return [*notes, *([f"what its kernels hold can be seen: {flags}"] if words else [])]


def provenance(session: Session) -> Provenance:
    kernels = tuple(dict.fromkeys(kernel for outcome in session.outcomes for kernel in outcome.kernels))
    interpreted = any(outcome.interpreted for outcome in session.outcomes)
    cuda = next((outcome.cuda for outcome in session.outcomes if outcome.cuda), "")
    backend = cuda or ("torch" if not kernels else "triton-interpreter" if interpreted else "triton")
    reference = session.reference.name if session.reference else "gradprobe.reference, float64"
    cache = triton_cache() if backend == "triton" else ""
    return Provenance(session.target.name, backend, session.target.source, kernels, reference, cache)


def environment(device: str) -> dict[str, str]:
    """Versions and the device, in words."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from .. import __version__

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    name = torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()})"
    return {
        "gradprobe": __version__, "python": platform.python_version(),
        "torch": str(torch.__version__), "triton": triton,
        "cuda": torch.version.cuda or "none", "device": name,
    }  # fmt: skip
