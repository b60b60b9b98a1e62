"""Limits of Triton's interpreter: what it cannot run of kernels that a compiler takes, and what to change."""

from __future__ import annotations

import sys
from functools import partial

from ...processes.forks import ParallelWork
from .kernel_call import KernelCall

# What the interpreter raises of what it lacks. A kernel's own assertion is no limit.
_KINDS = (AttributeError, TypeError, NotImplementedError, NameError, ValueError)
_PATIENCE = 60.0
_WAYS_OUT = {
    "inline_asm": "give the kernel a branch without assembly for the interpreter, or check it on a GPU",
    "libdevice": "use a function of tl.math there, or check it on a GPU",
}


def is_limit(error: BaseException, call: KernelCall) -> bool:
    """Whether what a kernel raised in the interpreter is not its fault: the compiler's front end takes the launch."""
    if not isinstance(error, _KINDS) or sys.platform != "linux":
        return False
    with ParallelWork(partial(_is_taken, call), is_short=True) as fork:
        return bool(fork.answer(_PATIENCE))


def limit_way_out(words: str) -> str:
    """What to do about it."""
    known = next((way for name, way in _WAYS_OUT.items() if name in words), "")
    return known or "write that line another way, or check it on a GPU"


def _is_taken(call: KernelCall) -> bool:
    from .front_end.lowering import is_taken

    return is_taken(call)
