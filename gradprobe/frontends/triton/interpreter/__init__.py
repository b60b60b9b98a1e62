"""Triton's interpreter, mended: right bfloat16, scalars and bools, and less time lost; and what it does, watched.

Import this only once TRITON_INTERPRET=1 is in the environment, since it imports triton.
"""

import functools

from . import language_patches as language
from .bfloat16 import InterpreterNotKnown, make_bfloat16_right

__all__ = ["InterpreterNotKnown", "make_bfloat16_right", "mend_interpreter"]
_PATCHES = (
    language.shipped_language, language.make_scalars_right, language.keep_patched_language, language.repeat_operations,
    language.make_operations_quick, language.keep_arguments_in_place, language.take_bools, language.take_products,
    language.give_libdevice, language.find_names, language.give_loops_dtypes,
)  # fmt: skip


@functools.cache
def mend_interpreter() -> None:
    """Patches the interpreter in all that no dtype needs of its own, each thing once, in this order."""
    for patch in _PATCHES:
        patch()
