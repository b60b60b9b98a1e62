"""How float32 dots are judged: as they are declared, else as they were read, else as a backend does by default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..frontends.interface import COMPILED
from ..model.case import DOTS
from ..runtime.arithmetic import CUBLAS, Dots, coarsest
from .experiment import Experiment


def declared_way(of: Experiment) -> str | None:
    """What the command line says, or what a target was told that asks; None where nobody said anything."""
    return of.case.dots or ("ieee" if "dots" in of.target.takes else None)


def _read(of: Experiment) -> list[Dots]:
    """What decides: kernels whose dots were read; torch's setting where there are none, or where it is TF32."""
    kernels = [one for one in of.dots if one.by != CUBLAS]
    if COMPILED in of.backends and not kernels:
        return []
    return kernels + [one for one in of.dots if one.by == CUBLAS and (not kernels or one.way != "ieee")]


def dots_of(of: Experiment) -> str:
    """One of DOTS, by which all is judged: a gradient is as coarse as the coarsest dot that it comes from."""
    if of.case.dtype != "float32":
        return "ieee"
    if of.case.device == "cpu":  # where nothing multiplies otherwise by itself
        return of.case.dots or "ieee"
    read = _read(of)
    return declared_way(of) or (coarsest(read) if read or COMPILED not in of.backends else "tf32")


def coarser_dots(of: Experiment) -> list[Dots]:
    """The dots that are coarser than what is declared."""
    declared = declared_way(of)
    if of.case.device == "cpu" or of.case.dtype != "float32" or declared is None:
        return []
    return [one for one in _read(of) if DOTS.index(one.way) > DOTS.index(declared)]


def sentences_of_dots(of: Experiment) -> Iterator[str]:
    """By which arithmetic all is judged, and how that is known. Nothing where there is no choice."""
    case, way, read = of.case, dots_of(of), _read(of)
    if case.dtype != "float32" or case.device == "cpu":
        if case.dots not in (None, way):
            yield f"--dots {case.dots} is for float32: products of {case.dtype} are exact in float32"
        elif case.dots not in (None, "ieee"):
            yield f"dots are judged as {way}, as --dots says; a CPU multiplies in IEEE by itself"
        return
    if declared_way(of) is not None:
        why = "as --dots says" if case.dots is not None else "which the target is told"
        why += f"; read: {dots_in_words(read)}" if read else "; they could not be read"
    elif read:
        why = f"as was read: {dots_in_words(read)}"
    elif COMPILED in of.backends:
        why = "Triton's default: what its kernels were compiled to could not be read"
    else:
        why = "since nothing was seen that says otherwise; --dots tf32 allows TF32"
    yield f"dots are judged as {way}, {why}"


def dots_in_words(found: Sequence[Dots]) -> str:
    """Where which way was read, the coarsest first: `tf32 in dq_kernel (kernel.py:81, 90); ieee in forward_kernel`."""
    places: dict[str, dict[str, None]] = {}
    for one in sorted(found, key=lambda one: -DOTS.index(one.way)):
        lines = ", ".join(map(str, one.lines)) if one.way != "ieee" else ""
        places.setdefault(one.way, {})[f"{one.by} ({Path(one.file).name}:{lines})" if lines else one.by] = None
    return "; ".join(f"{way} in {', '.join(those)}" for way, those in places.items())
