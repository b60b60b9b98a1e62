"""Versions of packages, none of which is imported for it."""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..model.failures import UntestedVersion

# What a check computes with, the least release, and the first that is not known, such as "torch<2.16,>=2.11".
_REQUIRED = re.compile(
    r"(?P<name>torch|triton|numpy)(?=.*>=(?P<least>[\d.]+))(?=.*<(?P<below>[\d.]+))"
)


def _installed() -> Iterator[tuple[str, str, bool]]:
    """("torch 2.16.1", "torch>=2.11,<2.16", whether that holds), as far as installed."""
    from importlib import metadata  # --help needs none of it

    with contextlib.suppress(metadata.PackageNotFoundError):
        for part in filter(None, map(_REQUIRED.match, metadata.requires("gradprobe") or [])):
            name, least, below = part.groups()
            # One may be there under another name, as other builds of triton are.
            if version := _version(name):
                holds = release(least) <= release(version) < release(below)
                yield f"{name} {version}", f"{name}>={least},<{below}", holds


def _version(package: str) -> str:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


@functools.cache
def untested() -> str:
    outside = [(found, bound) for found, bound, holds in _installed() if not holds]
    found, bounds = (" and ".join(words[at] for words in outside) for at in (0, 1))
    return f"{found}: outside what gradprobe is tested with, {bounds}" if outside else ""


def refuse_untested() -> None:
    if words := untested():
        wanted = " ".join(f"'{bound}'" for _, bound, _ in _installed())
        raise UntestedVersion(words, f"pip install {wanted}, or go on with --untested")


def release(version: str) -> tuple[int, ...]:
    numbers = re.split(r"[^\d.]", version)[0].split(".")
    return tuple(map(int, filter(None, numbers)))


@functools.cache
def installed_versions() -> dict[str, str]:
    import platform
    import runpy
    from importlib.machinery import PathFinder

    from .. import __version__

    found = PathFinder.find_spec("torch")
    # A file of torch's that imports nothing; its metadata do not name its CUDA.
    file = found and found.origin and Path(found.origin).with_name("version.py")
    torch = runpy.run_path(str(file)) if file else {}
    return {
        "gradprobe": __version__,
        "python": platform.python_version(),
        "torch": torch.get("__version__", "none"),
        "triton": _version("triton") or "none",
        "cuda": torch.get("cuda") or "none",
    }


def environment(device: str) -> dict[str, str]:
    import platform

    name = f"cpu ({platform.machine()})"
    if device == "cuda":
        import torch

        name = torch.cuda.get_device_name()
    words = untested()
    return {**installed_versions(), "device": name} | ({"untested": words} if words else {})


def triton_cache() -> str:
    home = Path(os.environ.get("TRITON_HOME", Path.home()))
    return os.environ.get("TRITON_CACHE_DIR") or str(home / ".triton" / "cache")
