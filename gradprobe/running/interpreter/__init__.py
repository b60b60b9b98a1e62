"""What Triton's interpreter lacks, mended from outside: right bfloat16, and less time lost between calls.

Import only once TRITON_INTERPRET=1 is in the environment: triton is imported here.
"""

from .arguments import keep_arguments_in_place, take_bools
from .bfloat16 import InterpreterNotKnown, make_bfloat16_right
from .language import keep_patched_language
from .scalars import make_scalars_right
from .selfcheck import wrong_bfloat16_operations

__all__ = [
    "InterpreterNotKnown",
    "keep_arguments_in_place",
    "keep_patched_language",
    "take_bools",
    "make_bfloat16_right",
    "make_scalars_right",
    "wrong_bfloat16_operations",
]
