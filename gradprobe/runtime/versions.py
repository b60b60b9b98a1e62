"""With which releases of other packages gradprobe runs, asked of their metadata before any is imported."""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass

from ..model.failures import Untested

# What a check computes with, the least release, and the first that is not known, such as "torch<2.16,>=2.11".
_REQUIRED = re.compile(r"(?P<name>torch|triton|numpy)(?=.*>=(?P<least>[\d.]+))(?=.*<(?P<below>[\d.]+))")


@dataclass(frozen=True)
class InstalledPackage:
    name: str
    found: str
    bound: str
    """Such as ">=2.11,<2.16"."""
    holds: bool


def _installed() -> list[InstalledPackage]:
    """What a check computes with, as far as it is installed, which gradprobe is too; none of it is imported."""
    from importlib import metadata  # --help needs none of it

    found, required = list[InstalledPackage](), list[str]()
    with contextlib.suppress(metadata.PackageNotFoundError):
        required += metadata.requires("gradprobe") or []
    for part in filter(None, map(_REQUIRED.match, required)):
        name, least, below = part.groups()
        with contextlib.suppress(metadata.PackageNotFoundError):  # or under another name, as other builds of triton are
            version = metadata.version(name)
            holds = release(least) <= release(version) < release(below)
            found.append(InstalledPackage(name, version, f">={least},<{below}", holds))
    return found


@functools.cache
def untested() -> str:
    """Which installed versions are outside of those that gradprobe is tested with; "" where none is."""
    outside = [package for package in _installed() if not package.holds]
    found = " and ".join(f"{package.name} {package.found}" for package in outside)
    bounds = " and ".join(package.name + package.bound for package in outside)
    return f"{found}: outside what gradprobe is tested with, {bounds}" if outside else ""


def refuse_untested() -> None:
    """Raises Untested where gradprobe is not tested with what is installed, with the command that installs it."""
    if words := untested():
        wanted = " ".join(f"'{package.name}{package.bound}'" for package in _installed())
        raise Untested(words, f"pip install {wanted}, or go on with --untested")


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: of 2.11.0a0+git those of 2.11.0."""
    numbers = re.split(r"[^\d.]", version)[0].split(".")
    return tuple(map(int, filter(None, numbers)))
