"""Triton's interpreter, mended and watched. Needs TRITON_INTERPRET=1 at import."""

from .language_patches import mend_interpreter
from .plans import InterpreterNotKnown

__all__ = ["InterpreterNotKnown", "make_bfloat16_right", "mend_interpreter"]


def make_bfloat16_right() -> None:
    from . import bfloat16

    bfloat16.make_bfloat16_right()
