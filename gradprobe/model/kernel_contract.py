"""Contract: what a kernel's arithmetic is, as it was read off its bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .case import Case

SCHEMA = "gradprobe.contract/1"
IEEE, TF32 = "float32", "TF32"
"""How a number of 24 bits is multiplied: as it is, or cut or rounded to 11 bits."""


@dataclass(frozen=True)
class Reading:
    """One result of a kernel, and every way to compute it that gives the very bits that came."""

    of: str
    """O, dQ, dK or dV."""
    sums: bool
    """Whether it is about how the result is added up; else about what is rounded before."""
    fits: tuple[Mapping[str, str], ...]
    """Each way that fits, in its parts: {"P": "bfloat16", "scores": "float32"}; the likeliest first."""
    nearest: Mapping[str, str]
    """The way with the fewest elements that differ, the first of those that fit."""
    differing: int
    """Elements that differ from it, in all draws."""
    elements: int
    ways: int
    """How many ways were tried."""
    draws: int
    """On how many draws."""

    @property
    def parts(self) -> dict[str, list[str]]:
        """What is known of each part: one word, or several where ways that differ in it fit; of none, the nearest's.

        A part that only some ways name is float32 in the others.
        """
        ways = self.fits or (self.nearest,)
        every = dict.fromkeys(part for way in ways for part in way)
        return {part: list(dict.fromkeys(way.get(part, IEEE) for way in ways)) for part in every}


@dataclass(frozen=True)
class Contract:
    """The arithmetic of a target on the cases that were drawn."""

    target: str
    case: Case
    """Of the first draw that shows sums."""
    seed: int
    """Of the first draw; each other's is one more."""
    readings: tuple[Reading, ...]
    absent: tuple[str, ...] = ()
    """What the target does not give, or what could not be read, and why."""

    @property
    def is_read(self) -> bool:
        """Whether a way fits each result."""
        return all(reading.fits for reading in self.readings)

    def of(self, name: str, part: str) -> list[str]:
        """What is known of a part of a result: ["bfloat16"] of ("dV", "P"); [] where it was not read."""
        found = [one.parts[part] for one in self.readings if one.of == name and one.fits and part in one.parts]
        return found[0] if found else []

    @property
    def dots(self) -> str:
        """How float32 is multiplied: "ieee", or "tf32" where a product is coarser; "" of other dtypes.

        Where no way fits, the nearest says it: the two are far apart.
        """
        ways = [one.fits[0] if one.fits else one.nearest for one in self.readings if not one.sums]
        if self.case.dtype != "float32" or not ways:
            return ""
        coarse = (TF32, "float16", "bfloat16")
        return "tf32" if any(word.startswith(coarse) for way in ways for word in way.values()) else "ieee"

    def as_json(self) -> dict[str, Any]:
        """The document gradprobe.contract/1."""
        return {
            "schema": SCHEMA,
            "verdict": "read" if self.is_read else "not read",
            "target": self.target,
            "dtype": self.case.dtype,
            "seed": self.seed,
            "dots": self.dots,
            "readings": [
                {
                    "of": reading.of, "about": "sums" if reading.sums else "roundings",
                    "fits": [dict(way) for way in reading.fits], "nearest": dict(reading.nearest),
                    "differing": reading.differing, "elements": reading.elements, "tried": reading.ways,
                    "draws": reading.draws,
                }
                for reading in self.readings
            ],
            "absent": list(self.absent),
        }  # fmt: skip
