"""What kernels run on."""

import os
import sys

from ..frontends.triton import interpreting, stand_in_for
from ..model.case import Case
from ..model.failures import UsageFailure, refuse_if
from ..processes.resource_limits import SHARED_BY, VISIBLE

# With fewer scores in one batch, a second thread gains nothing: a dot of that size takes under a millisecond.
_SMALL = 1 << 18


def prepare_backend(device: str, arch: str | None = None) -> str:
    """ "cpu" or "cuda", or UsageFailure; without a GPU Triton interprets."""
    chosen = "cpu"
    if device == "auto" and interpreting():
        # On the CPU kernels are followed, and edits tried in forks, which cannot share a GPU: a child sees none.
        os.environ |= {VISIBLE: ""} if SHARED_BY in os.environ else {}
    elif device == "cuda" and interpreting():
        words = "--device cuda: TRITON_INTERPRET=1 is set, and the interpreter runs on the CPU"
        raise UsageFailure(words, "unset it, or use --device cpu")
    elif device != "cpu" and _has_gpu():
        chosen = "cuda"
    elif device == "cuda":
        words = "--device cuda: torch sees no CUDA device"
        raise UsageFailure(words, "use --device cpu, or see nvidia-smi")
    elif "triton" in sys.modules and not interpreting():
        words = "Triton was imported before gradprobe chose its interpreter"
        raise UsageFailure(words, "set TRITON_INTERPRET=1")
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    words = f"--arch {arch}: there is a GPU"
    refuse_if(arch is not None and _has_gpu(), words, "drop --arch")
    stand_in_for(arch)
    return chosen


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def choose_threads(case: Case) -> None:
    """Waiting for a second is 12 times slower on busy cores."""
    import torch

    if case.device == "cpu" and case.heads * case.seqlen_q * case.seqlen_k < _SMALL:
        torch.set_num_threads(1)


def make_interpreter_right(case: Case) -> None:
    """Raises InterpreterNotKnown."""
    if not interpreting():
        return
    from ..frontends.triton import interpreter

    interpreter.mend_interpreter()
    if case.dtype == "bfloat16":
        interpreter.make_bfloat16_right()
