"""Triton's interpreter, mended: right bfloat16, scalars and bools, and less time lost; and what it does, watched.

Import this only once TRITON_INTERPRET=1 is in the environment, since it imports triton.
"""

import functools

from .bfloat16 import InterpreterNotKnown, make_bfloat16_right
from .language_patches import (
    keep_arguments_in_place,
    keep_patched_language,
    make_operations_quick,
    make_scalars_right,
    repeat_operations,
    take_bools,
    take_products,
)
from .libdevice import give_libdevice
from .names import find_names, give_loops_dtypes
from .shipped import shipped_language

__all__ = ["InterpreterNotKnown", "make_bfloat16_right", "mend_interpreter"]
_PATCHES = (
    shipped_language, make_scalars_right, keep_patched_language, repeat_operations,
    make_operations_quick, keep_arguments_in_place, take_bools, take_products, give_libdevice, find_names,
    give_loops_dtypes,
)  # fmt: skip


@functools.cache
def mend_interpreter() -> None:
    """Patches the interpreter in all that no dtype needs of its own, each thing once, in this order."""
    for patch in _PATCHES:
        patch()
