"""The lowest rungs of a machine: single operations of Triton or CUDA C++, and what they must give."""

import contextlib
import importlib
import sys
from typing import Any

from ...inputs.history import CheckRequest
from ...model.allowance import Client
from ...model.layout_run import MATCH, MISMATCH, Error
from ...model.report import Report
from ..suite.checking import Checker
from ..suite.outcome import CheckOutcome
from ..suite.plan import PlannedCheck
from .ladder import IN_CUDA, Rung

CLIMBER = f"{__name__}:Climber"
# Programs that add to one element, and their sum, which float32 holds exactly in whatever order they come.
_PROGRAMS = 100
_SUM = _PROGRAMS * (_PROGRAMS + 1) // 2
_SIZE, _DEPTH = 64, 128


class Climber(Checker):
    def _check(self, planned: PlannedCheck, client: Client) -> CheckOutcome:
        if not isinstance(planned, Rung) or not planned.is_primitive:
            return super()._check(planned, client)
        from ...runtime.backend import prepare_backend

        prepare_backend(str(planned.request.options["device"]))
        with contextlib.redirect_stdout(sys.stderr):
            words = run_primitive(planned.request)
        verdict = MISMATCH if words else MATCH
        error = Error(kind="", message=words) if words else None
        return CheckOutcome(planned.request, Report(verdict=verdict, error=error))


def run_primitive(request: CheckRequest) -> str:
    """What a primitive did wrong; "" where nothing. Failure where it does not compile or run."""
    module, _, name = request.target.partition(":")
    options = {"dtype": "float32", **request.options}
    if module != IN_CUDA:
        from ...model.resolution import resolve
        from ...runtime.backend import make_interpreter_right

        make_interpreter_right(resolve(options, "softmax", takes_bias=False))
    function = getattr(importlib.import_module(module), name)
    if name == "dots":
        return _dots(function, options["device"], options["dtype"], options["dots"])
    return _adds(function, name == "add_one", options["device"])


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


def _dots(dots: Any, device: str, dtype: str, precision: str) -> str:
    import torch

    from ...numerics.declared_precision import dot_error, output_rounding, precision_of

    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    a = torch.randn(_SIZE, _DEPTH, generator=draw).to(kind)
    b = torch.randn(_DEPTH, _SIZE, generator=draw).to(kind)
    # Of two operands, and of the transpose of one.
    found = dots(a.to(device), b.to(device), precision).cpu().double()
    exact, contract = a.double() @ b.double(), precision_of(dtype, precision)
    bound = dot_error(a.double(), b.double(), contract, unit=contract.operand)
    bound = bound + output_rounding(exact, bound, torch.float32)
    error = (found - exact).abs()
    wrong = ~(error <= bound)
    if not bool(wrong.any()):
        return ""
    worst = float((error / bound).nan_to_num(float("inf")).max())
    return f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, worst {worst:.3g} times the bound"
