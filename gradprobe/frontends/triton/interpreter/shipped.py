"""Triton's language as it is shipped: the interpreter replaces parts of it in each launch, this tool some for good."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import triton.language as tl

from .libdevice import libdevice_modules

_MODULES = ("core", "math", "standard", "random", "semantic")


@functools.cache
def shipped_language() -> Mapping[Any, Mapping[str, Any]]:
    """The attributes of the language's modules and classes as they were when this was first called."""
    modules = [tl, *(getattr(tl, name) for name in _MODULES if hasattr(tl, name)), *libdevice_modules()]
    classes = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    own = [one for one in classes if one.__module__.startswith("triton.language")]
    return {owner: dict(vars(owner)) for owner in (*modules, *own)}
