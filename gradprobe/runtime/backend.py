"""Chooses where kernels run, a GPU or Triton's interpreter, before Triton is imported; and mends the interpreter."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from ..frontends.triton import interpreting
from ..frontends.triton.stand_in import stand_in_for
from ..model.case import Case
from ..model.failures import UsageFailure
from ..processes.resource_limits import SHARED_BY, VISIBLE

# With fewer scores in one batch, a second thread gains nothing: a dot of that size takes under a millisecond.
SMALL = 1 << 18


def prepare_backend(device: str, arch: str | None = None) -> str:
    """Returns the device to run on, "cpu" or "cuda". Without a GPU, it sets Triton to its interpreter.

    Where TRITON_INTERPRET=1 is set beforehand, "auto" is "cpu".

    Args:
        arch: the architecture of the GPU that is stood in for where there is none; None for the default.

    Raises:
        UsageFailure: cuda was asked for and there is none, an architecture where there is a GPU, or Triton was imported
            before in the other mode.
    """
    chosen = "cpu"
    if device == "auto" and interpreting():
        # Whoever has kernels interpreted debugs them: where their tensors lie on the host they are followed, and edits
        # are tried, in forks, which cannot share a GPU. A process of this tool's own sees none.
        if SHARED_BY in os.environ:
            os.environ[VISIBLE] = ""
    elif device != "cpu" and _has_gpu():
        chosen = "cuda"
    elif device == "cuda":
        way_out = "use --device cpu, or check the driver with nvidia-smi"
        raise UsageFailure("--device cuda: torch sees no CUDA device", way_out)
    elif "triton" in sys.modules and not interpreting():
        raise UsageFailure(
            "Triton was imported before gradprobe could choose its interpreter",
            "set TRITON_INTERPRET=1 in the environment; of pytest, its setting gradprobe_interpret = true does so",
        )
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    if arch is not None and _has_gpu():
        raise UsageFailure(f"--arch {arch}: there is a GPU, and it answers itself", "drop --arch")
    stand_in_for(arch)
    return chosen


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def choose_threads(case: Case) -> None:
    """Takes one CPU thread for small problems. On busy cores, waiting for a second thread made them 12 times slower."""
    import torch

    if case.device == "cpu" and case.heads * case.seqlen_q * case.seqlen_k < SMALL:
        torch.set_num_threads(1)


def make_interpreter_right(case: Case) -> None:
    """Makes the arithmetic of Triton's interpreter right for the case's dtype, where it runs.

    Raises:
        InterpreterNotKnown: this release of Triton lacks something that has to be patched.
    """
    if not interpreting():
        return
    from ..frontends.triton import interpreter

    interpreter.mend_interpreter()
    if case.dtype == "bfloat16":
        interpreter.make_bfloat16_right()


@contextlib.contextmanager
def ordinary_torch() -> Iterator[None]:
    """While open, torch is as in a new process. Afterwards its state is as before.

    Gradients are recorded, autocast is off, and tensors are float32 and on the CPU by default. The number of threads,
    which a check may lower, is restored.
    """
    import torch

    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":  # a mode that every call of torch passes through
            stack.enter_context(torch.device("cpu"))
        yield
