"""Finds the line of the source for an address in a library: the innermost that is not in our header."""

from __future__ import annotations

import functools
import linecache
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ..findings import Line
from .build import HERE

UNKNOWN = Line("", 0, "")


def lines_of(library: Path, addresses: Iterable[int]) -> dict[int, Line]:
    """The line of each return address, by addr2line; UNKNOWN where that finds none."""
    return {address: _line(library, address) for address in set(addresses)}


@functools.lru_cache(maxsize=4096)
def _line(library: Path, address: int) -> Line:
    # A return address is the address of the instruction after the call.
    words = ["addr2line", "--inlines", "--exe", str(library), hex(address - 1)]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    for place in ran.stdout.splitlines():
        file, _, number = place.partition(" (")[0].rpartition(":")
        if file and number.isdigit() and not Path(file).resolve().is_relative_to(HERE):
            linecache.checkcache(file)  # it may have changed since another library was compiled from it
            return Line(file, int(number), linecache.getline(file, int(number)).strip())
    return UNKNOWN
