"""Primitives: what the simplest kernels must give, to the last bit or within a derived bound, and what they gave."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# The modules of the kernels, whose functions have the same names.
IN_TRITON, IN_CUDA = "gradprobe.kernels.triton.rungs", "gradprobe.targets.adapters.rungs_cuda"
# Programs that add to one element, and their sum, which float32 holds exactly, in whatever order they come.
_PROGRAMS, _HEADS = 100, 8
_SUM = _PROGRAMS * (_PROGRAMS + 1) // 2
_SIZE, _DEPTH = 64, 128


def run_primitive(name: str, cuda: bool, device: str) -> str:
    """What was wrong; "" where nothing was.

    Args:
        name: as `Rung.primitive` has it.
        cuda: whether it is the kernel in CUDA C++, and not the one in Triton.

    Raises:
        Failure: the kernel does not compile, or cannot run here.
    """
    function, *words = name.split(":")
    kernels = _kernels(cuda, words[0] if words else "float32", device)
    if function == "dots":
        return _dots(kernels, device, *words)
    return (_add_one if function == "add_one" else _add_strided)(kernels, device)


def _kernels(cuda: bool, dtype: str, device: str) -> Any:
    if not cuda:
        from ...model.resolution import resolve
        from ...runtime.backend import make_interpreter_right

        make_interpreter_right(
            resolve({"dtype": dtype, "device": device}, "softmax", takes_bias=False)
        )
    return importlib.import_module(IN_CUDA if cuda else IN_TRITON)


def _add_one(kernels: Any, device: str) -> str:
    import torch

    out = torch.zeros(_HEADS, 3, device=device)[:, 1]
    kernels.add_one(out, _PROGRAMS)
    return _not_all(out, f"of {_PROGRAMS} atomic adds a head")


def _add_strided(kernels: Any, device: str) -> str:
    import torch

    around = torch.zeros(40, 70, device=device)
    out = around[3:36:2, 5:60:3]
    kernels.add_strided(out, _PROGRAMS)
    if words := _not_all(out, f"of {_PROGRAMS} atomic adds an element"):
        return words
    out.zero_()
    return "it added to memory between its elements" if bool(around.any()) else ""


def _not_all(out: Tensor, subject: str) -> str:
    wrong = out[~(out == _SUM)]
    if not wrong.numel():
        return ""
    return f"{subject}, {wrong.numel()} of {out.numel()} sums are wrong: {wrong.flatten()[0]:g} and not {_SUM}"


def _dots(kernels: Any, device: str, dtype: str, precision: str) -> str:
    import torch

    from ...numerics.declared_precision import dot_error, output_rounding, precision_of

    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    a = torch.randn(_SIZE, _DEPTH, generator=draw).to(kind)
    b = torch.randn(_DEPTH, _SIZE, generator=draw).to(kind)
    came = kernels.dots(a.to(device), b.to(device), precision).cpu().double()
    exact, contract = a.double() @ b.double(), precision_of(dtype, precision)
    bound = dot_error(a.double(), b.double(), contract, unit=contract.operand)
    bound = bound + output_rounding(exact, bound, torch.float32)
    error = (came - exact).abs()
    wrong = ~(error <= bound)
    if not bool(wrong.any()):
        return ""
    form = "of the transpose of one operand" if not bool(wrong[0].any()) else "of two operands"
    worst = float((error / bound).nan_to_num(float("inf")).max())
    return f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, worst {worst:.3g} times the bound, {form}"
