"""What the simplest kernels must give, to the last bit or within a derived bound, and what they gave."""

from __future__ import annotations

import importlib
from typing import Any

# The modules of the kernels, whose functions have the same names.
IN_TRITON, IN_CUDA = "gradprobe.kernels.triton.rungs", "gradprobe.targets.adapters.cuda_kernels"
# Programs that add to one element, and their sum, which float32 holds exactly in whatever order they come.
_PROGRAMS = 100
_SUM = _PROGRAMS * (_PROGRAMS + 1) // 2
_SIZE, _DEPTH = 64, 128


def run_primitive(name: str, cuda: bool, device: str) -> str:
    """What was wrong; "" where nothing was. Failure where the kernel does not compile or run.

    Args:
        name: as `Rung.primitive` has it.
        cuda: whether it is the kernel in CUDA C++, and not the one in Triton.
    """
    function, *words = name.split(":")
    if not cuda:
        from ...model.resolution import resolve
        from ...runtime.backend import make_interpreter_right

        options = {"dtype": words[0] if words else "float32", "device": device}
        make_interpreter_right(resolve(options, "softmax", takes_bias=False))
    kernels = importlib.import_module(IN_CUDA if cuda else IN_TRITON)
    if function == "dots":
        return _dots(kernels, device, *words)
    return _adds(getattr(kernels, function), function == "add_one", device)


def _adds(add: Any, is_one_axis: bool, device: str) -> str:
    import torch

    around = torch.zeros(40, 70, device=device)
    out = around[3:11, 1] if is_one_axis else around[3:36:2, 5:60:3]
    add(out, _PROGRAMS)
    wrong = out[~(out == _SUM)]
    if wrong.numel():
        subject = f"of {_PROGRAMS} atomic adds an element, {wrong.numel()} of {out.numel()} sums"
        return f"{subject} are wrong: {wrong.flatten()[0]:g} and not {_SUM}"
    out.zero_()
    return "it added to memory between its elements" if bool(around.any()) else ""


def _dots(kernels: Any, device: str, dtype: str, precision: str) -> str:
    import torch

    from ...numerics.declared_precision import dot_error, output_rounding, precision_of

    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    a = torch.randn(_SIZE, _DEPTH, generator=draw).to(kind)
    b = torch.randn(_DEPTH, _SIZE, generator=draw).to(kind)
    # Of two operands, and of the transpose of one.
    found = kernels.dots(a.to(device), b.to(device), precision).cpu().double()
    exact, contract = a.double() @ b.double(), precision_of(dtype, precision)
    bound = dot_error(a.double(), b.double(), contract, unit=contract.operand)
    bound = bound + output_rounding(exact, bound, torch.float32)
    error = (found - exact).abs()
    wrong = ~(error <= bound)
    if not bool(wrong.any()):
        return ""
    form = "of two operands" if bool(wrong[0].any()) else "of the transpose of one operand"
    worst = float((error / bound).nan_to_num(float("inf")).max())
    count = f"{int(wrong.sum())} of {wrong.numel()} elements are wrong"
    return f"{count}, worst {worst:.3g} times the bound, {form}"
