"""Triton's interpreter, mended, and watched. Import this only once TRITON_INTERPRET=1 is in the environment."""

from .bfloat16 import make_bfloat16_right
from .language_patches import mend_interpreter
from .plans import InterpreterNotKnown

__all__ = ["InterpreterNotKnown", "make_bfloat16_right", "mend_interpreter"]
