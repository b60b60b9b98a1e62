"""Addresses in a library -> lines of the source, the innermost that is not the header's."""

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
    """The line of each return address, by addr2line; UNKNOWN where it tells none."""
    return {address: _line(library, address) for address in set(addresses)}


@functools.lru_cache(maxsize=4096)
def _line(library: Path, address: int) -> Line:
    # A return address is that of the instruction behind the call.
    words = ["addr2line", "--inlines", "--exe", str(library), hex(address - 1)]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    for place in ran.stdout.splitlines():
        file, _, number = place.partition(" (")[0].rpartition(":")
        if file and number.isdigit() and not Path(file).resolve().is_relative_to(HERE):
            linecache.checkcache(file)  # it may have been changed since another library was made of it
            return Line(file, int(number), linecache.getline(file, int(number)).strip())
    return UNKNOWN
