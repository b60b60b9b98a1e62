"""Chooses where kernels run, a GPU or Triton's interpreter, before Triton is imported; and mends the interpreter."""

from __future__ import annotations

import os
import sys

from ..cases.case import Case
from ..failures import TargetFailure, UsageFailure

# With fewer scores in one batch, a second thread gains nothing: a dot of that size takes under a millisecond.
SMALL = 1 << 18


def prepare_backend(device: str) -> str:
    """Returns the device to run on, "cpu" or "cuda". Without a GPU, it sets Triton to its interpreter.

    Raises:
        UsageFailure: cuda was asked for and there is none, or Triton was imported before in the other mode.
    """
    if device == "cpu":
        _choose_interpreter()
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise UsageFailure(
            "--device cuda: torch sees no CUDA device", "use --device cpu, or check the driver with nvidia-smi"
        )
    _choose_interpreter()
    return "cpu"


def _choose_interpreter() -> None:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise UsageFailure(
            "Triton was imported before gradprobe could choose its interpreter",
            "set TRITON_INTERPRET=1 in the environment; of pytest, its setting gradprobe_interpret = true does so",
        )
    os.environ["TRITON_INTERPRET"] = "1"


def choose_threads(case: Case) -> None:
    """Takes one CPU thread for small problems. On busy cores, waiting for a second thread made them 12 times slower."""
    import torch

    if case.device == "cpu" and case.heads * case.seqlen_q * case.seqlen_k < SMALL:
        torch.set_num_threads(1)


def make_interpreter_right(case: Case) -> None:
    """Makes the arithmetic of Triton's interpreter right for the case's dtype, where it runs.

    Raises:
        TargetFailure: bfloat16 is asked for and still not right in this version of Triton's interpreter.
    """
    if not interpreting():
        return
    from . import interpreter

    interpreter.make_scalars_right()
    interpreter.keep_patched_language()
    interpreter.keep_arguments_in_place()
    interpreter.take_bools()
    if case.dtype == "bfloat16":
        interpreter.make_bfloat16_right()
        wrong = interpreter.wrong_bfloat16_operations()
        if wrong:
            raise TargetFailure(
                f"bfloat16 cannot be checked here: Triton's interpreter computes {', '.join(wrong)} on its bits",
                "use --dtype float16 or float32, or a GPU",
            )


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels of this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"
