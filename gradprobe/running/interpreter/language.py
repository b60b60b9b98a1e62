"""Keeps Triton's language patched while one interpreted kernel runs.

The interpreter swaps the functions of triton.language for its own at each call of a device function, over and over for
the same modules; in kernels made of small functions that is over a quarter of the time. Once a launch is enough.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter as shipped

KEPT = "_language_kept_patched"


def keep_patched_language() -> None:
    """Patch the interpreter, once, so that within a launch each module's language is swapped a single time."""
    if getattr(shipped, KEPT, False):
        return
    swapped: set[frozenset[int]] = set()
    swap, launch = shipped._patch_lang, shipped.GridExecutor.__call__

    def swap_once(fn: Callable[..., Any]) -> Any:
        modules = frozenset(id(value) for value in fn.__globals__.values() if inspect.ismodule(value))
        if modules in swapped:
            return shipped._LangPatchScope()
        swapped.add(modules)
        return swap(fn)

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        swapped.clear()
        return launch(self, *args, **kwargs)

    shipped._patch_lang = swap_once
    shipped.GridExecutor.__call__ = launch_afresh
    setattr(shipped, KEPT, True)
