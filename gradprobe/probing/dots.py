"""How float32 dots are judged: as they are declared, else as they were read, else as a backend does by default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..model.case import DOTS
from ..runtime.arithmetic import CUBLAS, Dots, coarsest
from .experiment import Experiment


def declared_way(of: Experiment) -> str | None:
    """What the command line says, or what a target was told that asks; None where nobody said anything."""
    return of.case.dots or ("ieee" if "dots" in of.target.takes else None)


def _read(of: Experiment) -> list[Dots]:
    """What decides: kernels whose dots were read; torch's setting where there are none, or where it is TF32."""
    kernels = [one for one in of.dots if one.by != CUBLAS]
    if of.is_compiled and not kernels:
        return []
    return kernels + [one for one in of.dots if one.by == CUBLAS and (not kernels or one.way != "ieee")]


def dots_of(of: Experiment) -> str:
    """One of DOTS, by which all is judged: a gradient is as coarse as the coarsest dot that it comes from."""
    if of.case.dtype != "float32":
        return "ieee"
    if of.case.device == "cpu":  # where nothing multiplies otherwise by itself
        return of.case.dots or "ieee"
    read = _read(of)
    return declared_way(of) or (coarsest(read) if read or not of.is_compiled else "tf32")


def coarser_dots(of: Experiment) -> list[Dots]:
    """The dots that are coarser than what is declared."""
    declared = declared_way(of)
    if of.case.device == "cpu" or of.case.dtype != "float32" or declared is None:
        return []
    return [one for one in _read(of) if DOTS.index(one.way) > DOTS.index(declared)]


def sentences_of_dots(of: Experiment) -> Iterator[str]:
    """By which arithmetic all is judged, and how that is known. Nothing where there is no choice."""
    case, way, read = of.case, dots_of(of), _read(of)
    beside = f"; read: {dots_in_words(read)}" if read else "; they could not be read"
    if case.dtype != "float32":
        if case.dots is not None:
            yield f"--dots {case.dots} is for float32: products of {case.dtype} are exact in float32"
    elif case.device == "cpu":
        if case.dots not in (None, "ieee"):
            yield f"dots are judged as {way}, as --dots says; a CPU multiplies in IEEE by itself"
    elif case.dots is not None:
        yield f"dots are judged as {way}, as --dots says{beside}"
    elif declared_way(of) is not None:
        yield f"dots are judged as {way}, which the target is told{beside}"
    elif read:
        yield f"dots are judged as {way}, as was read: {dots_in_words(read)}"
    elif of.is_compiled:
        yield "dots are judged as tf32, Triton's default: what its kernels were compiled to could not be read"
    else:
        yield "dots are judged as ieee: nothing was seen that says otherwise; --dots tf32 allows TF32"


def dots_in_words(found: Sequence[Dots]) -> str:
    """Where which way was read, the coarsest first: `tf32 in dq_kernel (kernel.py:81, 90); ieee in forward_kernel`."""
    ways = [way for way in reversed(DOTS) if any(one.way == way for one in found)]
    told = {way: dict.fromkeys(f"{one.by}{_place(one)}" for one in found if one.way == way) for way in ways}
    return "; ".join(f"{way} in {', '.join(places)}" for way, places in told.items())


def _place(dots: Dots) -> str:
    if not dots.lines or dots.way == "ieee":
        return ""
    return f" ({Path(dots.file).name}:{', '.join(map(str, dots.lines))})"
