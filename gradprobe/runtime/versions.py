"""Versions: with which releases of other packages gradprobe runs, asked of their metadata before any is imported."""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass

from ..model.failures import Untested

# What a check computes with.
_JUDGED = ("torch", "triton", "numpy")


@dataclass(frozen=True)
class InstalledPackage:
    """An installed package, and with which of its versions gradprobe is tested."""

    name: str
    found: str
    bound: str
    """Such as ">=2.11,<2.16"."""
    holds: bool


def tested() -> tuple[InstalledPackage, ...]:
    """What a check computes with, as far as it is installed; none of it is imported."""
    # Not at the top: --help needs none of it.
    from importlib import metadata

    found = []
    for name, bound in _bounds().items():
        with contextlib.suppress(metadata.PackageNotFoundError):  # or under another name, as other builds of triton are
            version = metadata.version(name)
            found.append(InstalledPackage(name, version, bound, _holds(bound, version)))
    return tuple(found)


@functools.cache
def untested() -> str:
    """Which installed versions are outside of those that gradprobe is tested with; "" where none is."""
    outside = [package for package in tested() if not package.holds]
    found = " and ".join(f"{package.name} {package.found}" for package in outside)
    bounds = " and ".join(f"{package.name}{package.bound}" for package in outside)
    return f"{found}: outside what gradprobe is tested with, {bounds}" if outside else ""


def refuse_untested() -> None:
    """Does nothing where gradprobe is tested with the installed versions; imports none of the packages.

    Raises:
        Untested: it is not, with the command that installs some that it is tested with.
    """
    if words := untested():
        wanted = " ".join(f"'{name}{bound}'" for name, bound in _bounds().items())
        raise Untested(words, f"pip install {wanted}, or go on with --untested")


def _bounds() -> dict[str, str]:
    """Of each package, such as ">=2.11,<2.16"; of none where these sources were not installed."""
    from importlib import metadata

    try:
        required = metadata.requires("gradprobe") or []
    except metadata.PackageNotFoundError:
        return {}
    found = {}
    for part in filter(None, (re.match(r"([\w-]+)([<>=,.\d]*)", each) for each in required)):
        found[part[1]] = ",".join(sorted(part[2].split(","), reverse=True))
    return {name: found[name] for name in _JUDGED if name in found}


def _holds(bound: str, version: str) -> bool:
    """Whether a version is within a bound of `>=` and `<`, by its release: 2.11.0a0+git is 2.11.0."""
    least, _, below = bound.removeprefix(">=").partition(",<")
    return release(least) <= release(version) and (not below or release(version) < release(below))


def refuse_click(typer: str) -> None:
    """Does nothing where this version of typer runs with the click that is installed.

    Raises:
        Untested: it does not. Before 0.15.4 it asks for any click from 8.0 on, and fails on every command from 8.2 on.
    """
    if release(typer) >= (0, 15, 4):
        return
    from importlib import metadata

    click = metadata.version("click")
    if release(click) >= (8, 2):
        raise Untested(f"typer {typer} does not run with click {click}", "pip install --upgrade typer, or 'click<8.2'")


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    return tuple(int(number) for number in re.split(r"[^\d.]", version)[0].split(".") if number)
