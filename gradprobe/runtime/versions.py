"""Versions: with which releases of other packages gradprobe runs, asked of their metadata before any is imported."""

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
    """An installed package, and with which of its versions gradprobe is tested."""

    name: str
    found: str
    bound: str
    """Such as ">=2.11,<2.16"."""
    holds: bool


def tested() -> tuple[InstalledPackage, ...]:
    """What a check computes with, as far as it is installed, which gradprobe is too; none of it is imported."""
    # Not at the top: --help needs none of it.
    from importlib import metadata

    found, required = [], list[str]()
    with contextlib.suppress(metadata.PackageNotFoundError):
        required += metadata.requires("gradprobe") or []
    for name, least, below in (part.groups() for part in map(_REQUIRED.match, required) if part):
        with contextlib.suppress(metadata.PackageNotFoundError):  # or under another name, as other builds of triton are
            version = metadata.version(name)
            holds = release(least) <= release(version) < release(below)
            found.append(InstalledPackage(name, version, f">={least},<{below}", holds))
    return tuple(found)


@functools.cache
def untested() -> str:
    """Which installed versions are outside of those that gradprobe is tested with; "" where none is."""
    outside = [package for package in tested() if not package.holds]
    found = " and ".join(f"{package.name} {package.found}" for package in outside)
    bounds = " and ".join(package.name + package.bound for package in outside)
    return f"{found}: outside what gradprobe is tested with, {bounds}" if outside else ""


def refuse_untested() -> None:
    """Does nothing where gradprobe is tested with the installed versions; imports none of the packages.

    Raises:
        Untested: it is not, with the command that installs some that it is tested with.
    """
    if words := untested():
        wanted = " ".join(f"'{package.name}{package.bound}'" for package in tested())
        raise Untested(words, f"pip install {wanted}, or go on with --untested")


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: of 2.11.0a0+git those of 2.11.0."""
    numbers = re.split(r"[^\d.]", version)[0].split(".")
    return tuple(int(number) for number in numbers if number)
