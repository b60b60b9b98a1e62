"""Triton's interpreter, mended and watched. Import it only once TRITON_INTERPRET=1 is set."""

from .language_patches import mend_interpreter
from .plans import InterpreterNotKnown

__all__ = ["InterpreterNotKnown", "mend_interpreter"]
