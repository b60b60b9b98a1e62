"""Which versions of what a check computes with are installed, as a report names them."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def installed_versions() -> dict[str, str]:
    """The versions that a report names, in words; none of the packages is imported."""
    # Not at the top: --help needs none of it.
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from .. import __version__

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    torch = _torch_versions()
    return {
        "gradprobe": __version__,
        "python": platform.python_version(),
        "torch": torch.get("__version__", "none"),
        "triton": triton,
        "cuda": torch.get("cuda") or "none",
    }


def _torch_versions() -> dict[str, Any]:
    """What torch says of itself in a file that imports nothing; its metadata do not name its CUDA."""
    import runpy
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("torch")
    folders = (found.submodule_search_locations if found else None) or ()
    return {} if not folders else runpy.run_path(f"{next(iter(folders))}/version.py")
