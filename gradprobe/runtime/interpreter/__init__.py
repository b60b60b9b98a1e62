"""Patches of Triton's interpreter, each applied once: right bfloat16, scalars and bools, and less time lost.

Import this only once TRITON_INTERPRET=1 is in the environment, since it imports triton.
"""

from .bfloat16 import InterpreterNotKnown, make_bfloat16_right, wrong_bfloat16_operations
from .kept import keep_types
from .language import (
    call_builtins_at_once,
    keep_arguments_in_place,
    keep_patched_language,
    make_scalars_right,
    take_bools,
    take_products,
)
from .libdevice import give_libdevice
from .names import find_names, give_loops_dtypes
from .quick import make_operations_quick
from .shipped import shipped_language

__all__ = [
    "InterpreterNotKnown",
    "call_builtins_at_once",
    "find_names",
    "give_libdevice",
    "give_loops_dtypes",
    "keep_arguments_in_place",
    "keep_patched_language",
    "keep_types",
    "take_bools",
    "take_products",
    "make_bfloat16_right",
    "make_operations_quick",
    "make_scalars_right",
    "shipped_language",
    "wrong_bfloat16_operations",
]
