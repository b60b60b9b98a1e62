"""What the interpreter does over and over in one launch, done once.

It swaps the functions of triton.language for its own at each call of a device function, again for the same modules: in
kernels made of small functions over a quarter of the time. And it builds its table of NumPy's dtypes anew for every
operation: a tenth.
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
    # Of functions whose globals were looked at, and of sets of modules: files of kernels often import the same ones.
    swapped: set[int | frozenset[int]] = set()
    dtypes: dict[str, Any] = {}
    swap, launch, look_up = shipped._patch_lang, shipped.GridExecutor.__call__, shipped._get_np_dtype

    def swap_once(fn: Callable[..., Any]) -> Any:
        if id(fn.__globals__) in swapped:
            return shipped._LangPatchScope()
        swapped.add(id(fn.__globals__))
        modules = frozenset(id(value) for value in fn.__globals__.values() if inspect.ismodule(value))
        if modules in swapped:
            return shipped._LangPatchScope()
        swapped.add(modules)
        return swap(fn)

    def dtype_of(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name not in dtypes:
            dtypes[scalar.name] = look_up(scalar)
        return dtypes[scalar.name]

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        swapped.clear()
        return launch(self, *args, **kwargs)

    shipped._get_np_dtype = dtype_of
    shipped._patch_lang = swap_once
    shipped.GridExecutor.__call__ = launch_afresh
    setattr(shipped, KEPT, True)
