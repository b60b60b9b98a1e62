"""Patches that make the interpreter do once in a launch what it would do again and again.

At each call of a device function it replaces the functions of triton.language by its own, each time in the same
modules. In kernels made of small functions this takes over a quarter of the time. For every operation it builds its
table of NumPy's dtypes, which takes a tenth.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter as shipped


@functools.cache
def keep_patched_language() -> None:
    """Patches the interpreter to replace each module's triton.language once in a launch."""
    # The ids of globals of functions, and sets of ids of modules, since files of kernels often import the same ones.
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
