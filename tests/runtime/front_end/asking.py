"""A kernel whose file asks how it runs."""

import os

import triton
import triton.language as tl

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def asking(a_ptr, out_ptr):
    """This file defines other names when it is compiled, as far as anybody knows."""
    if IS_INTERPRETED:
        tl.store(out_ptr, tl.load(a_ptr))
