"""How float32 dots are judged: as they are declared, else as they were read, else as a backend does by default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.case import DOTS, Case
from ..runtime.arithmetic import Dots, coarsest
from ..targets.find import Target

CUBLAS = "torch.backends.cuda.matmul"


@dataclass(frozen=True)
class Arithmetic:
    """What is known of the dots of a target."""

    case: Case
    target: Target
    seen: Sequence[Dots] = ()
    """What was read of its runs."""
    is_compiled: bool = False
    """Whether it launched compiled Triton kernels."""

    @property
    def declared(self) -> str | None:
        """What the command line says, or what a target was told that asks; None where nobody said anything."""
        return self.case.dots or ("ieee" if "dots" in self.target.takes else None)

    @property
    def read(self) -> list[Dots]:
        """What decides: kernels whose dots were read; torch's setting where there are none, or where it is TF32."""
        kernels = [one for one in self.seen if one.by != CUBLAS]
        if self.is_compiled and not kernels:
            return []
        return kernels + [one for one in self.seen if one.by == CUBLAS and (not kernels or one.way != "ieee")]

    @property
    def way(self) -> str:
        """One of DOTS, by which all is judged: a gradient is as coarse as the coarsest dot that it comes from."""
        if self.case.dtype != "float32":
            return "ieee"
        if self.case.device == "cpu":  # where nothing multiplies otherwise by itself
            return self.case.dots or "ieee"
        return self.declared or (coarsest(self.read) if self.read or not self.is_compiled else "tf32")

    @property
    def coarser(self) -> list[Dots]:
        """The dots that are coarser than what is declared."""
        if self.case.device == "cpu" or self.case.dtype != "float32" or self.declared is None:
            return []
        return [one for one in self.read if DOTS.index(one.way) > DOTS.index(self.declared)]

    def sentences(self) -> Iterator[str]:
        """By which arithmetic all is judged, and how that is known. Nothing where there is no choice."""
        if self.case.dtype != "float32":
            if self.case.dots is not None:
                yield f"--dots {self.case.dots} is for float32: products of {self.case.dtype} are exact in float32"
        elif self.case.device == "cpu":
            if self.case.dots not in (None, "ieee"):
                yield f"dots are judged as {self.way}, as --dots says; a CPU multiplies in IEEE by itself"
        elif self.case.dots is not None:
            yield f"dots are judged as {self.way}, as --dots says{self._beside()}"
        elif self.declared is not None:
            yield f"dots are judged as {self.way}, which the target is told{self._beside()}"
        elif self.read:
            yield f"dots are judged as {self.way}, as was read: {in_words(self.read)}"
        elif self.is_compiled:
            yield "dots are judged as tf32, Triton's default: what its kernels were compiled to could not be read"
        else:
            yield "dots are judged as ieee: nothing was seen that says otherwise; --dots tf32 allows TF32"

    def _beside(self) -> str:
        return f"; read: {in_words(self.read)}" if self.read else "; they could not be read"


def in_words(found: Sequence[Dots]) -> str:
    """Where which way was read, the coarsest first: `tf32 in dq_kernel (kernel.py:81, 90); ieee in forward_kernel`."""
    ways = [way for way in reversed(DOTS) if any(one.way == way for one in found)]
    told = {way: dict.fromkeys(f"{one.by}{_place(one)}" for one in found if one.way == way) for way in ways}
    return "; ".join(f"{way} in {', '.join(places)}" for way, places in told.items())


def _place(dots: Dots) -> str:
    if not dots.lines or dots.way == "ieee":
        return ""
    return f" ({Path(dots.file).name}:{', '.join(map(str, dots.lines))})"
