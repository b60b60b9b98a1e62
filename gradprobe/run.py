"""Target on Inputs -> Outcome: a Trace, or the words with which the target refused the layout."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backend import interpreting
from .bind import bind
from .case import Case
from .failures import TargetFailure
from .launches import recorded_launches
from .layouts import AS_SAVED, Inputs
from .provenance import Source, source_of
from .targets import Target
from .trace import Trace, read_trace

if TYPE_CHECKING:
    from torch import Tensor

# What a wrapper raises on purpose; anything else (IndexError, AttributeError, ...) is an accident, never a refusal.
_DELIBERATE = (ValueError, TypeError, NotImplementedError, AssertionError, RuntimeError)


@dataclass(frozen=True)
class Outcome:
    """What one run of a target came to."""

    trace: Trace | None
    """None where the target refused the layout."""
    refused: str | None
    """Its words when it refused."""
    kernels: tuple[Source, ...]
    """The Triton kernels that it launched, in order of their first launch."""
    interpreted: bool
    """Whether Triton's interpreter ran them."""


def run_target(target: Target, case: Case, inputs: Inputs) -> Outcome:
    """Runs the target once.

    A run that raises on purpose is a refusal, with its words, but not where the tensors are contiguous or lie as the
    user's own program had them. Outputs are read before they leave here, so an error of an asynchronous kernel belongs
    to the target.

    Raises:
        UsageFailure: from `bind`.
        TargetFailure: the target raised where it may not, or returned what it may not.
    """
    arguments = bind(target, case, inputs.tensors)
    with recorded_launches() as launches:
        try:
            result = _call(target, arguments, inputs)
            _synchronize(inputs)
        except _DELIBERATE as error:
            if inputs.layout in ("contiguous", AS_SAVED) or _is_a_crash(error):
                raise _raised(target, inputs, error) from error
            return Outcome(None, _words(error), _sources(launches), interpreting())
        except (Exception, SystemExit) as error:
            raise _raised(target, inputs, error) from error
    return Outcome(read_trace(result, case, f"target {target.name!r}"), None, _sources(launches), interpreting())


def _call(target: Target, arguments: dict[str, Any], inputs: Inputs) -> object:
    """A target's warnings are its own affair; numpy's, in the interpreter, are about numbers no GPU would remark on."""
    import numpy as np

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
        if target.is_backward:
            return target.function(**arguments)
        return _through_autograd(target, arguments, inputs.tensors["do"])


def _through_autograd(target: Target, arguments: dict[str, Any], do: Tensor) -> Mapping[str, Tensor | None]:
    """A forward's gradients for the case's own dO. Leaves keep the layouts of the tensors they are made from."""
    import torch

    gradients = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sinks": "dSink", "tau": "dTau"}
    names = {
        name: own for name, own in target.takes.items()
        if name in gradients and own in arguments and arguments[own].is_floating_point()
    }  # fmt: skip
    leaves = {name: arguments[own].detach().requires_grad_() for name, own in names.items()}
    result = target.function(**arguments | {names[name]: leaf for name, leaf in leaves.items()})
    output = result[0] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(output, torch.Tensor):
        raise TargetFailure(
            f"target {target.name!r} takes no dO, so it is a forward and must return its output tensor, "
            f"got {type(output).__name__}", "return O, or (O, ...), or take a parameter `do` and return a dict"
        )  # fmt: skip
    if not output.requires_grad:
        raise TargetFailure(
            f"target {target.name!r} is not differentiable: its output does not require grad",
            "a forward is differentiated through autograd; a backward takes a parameter `do`",
        )
    found = torch.autograd.grad(output, list(leaves.values()), do, allow_unused=True)
    results = {name: gradient for name, gradient in zip(leaves, found, strict=True)}
    # To autograd a gradient that never comes is 0, and so it is to an optimizer. That bias or sinks is no parameter of
    # a forward is common, and said by None; q, k and v always are.
    for name in ("q", "k", "v"):
        results[name] = torch.zeros_like(leaves[name]) if results[name] is None else results[name]
    return {"O": output} | {gradients[name]: gradient for name, gradient in results.items()}


def _synchronize(inputs: Inputs) -> None:
    if inputs.tensors["q"].is_cuda:
        import torch

        torch.cuda.synchronize()


def _is_a_crash(error: Exception) -> bool:
    """A RuntimeError of the device, or of Triton's compiler or interpreter, is no refusal."""
    words = str(error)
    return "CUDA error" in words or type(error).__module__.partition(".")[0] == "triton"


def _raised(target: Target, inputs: Inputs, error: BaseException) -> TargetFailure:
    kind, _, words = _words(error).partition(": ")
    return TargetFailure(f"target {target.name!r} raised {kind} ({inputs.layout}): {words}", "--traceback shows where")


def _words(error: BaseException) -> str:
    """An exception in one line; where it has no message, as of a bare assert, the line that raised it."""
    words = str(error).strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not words and frames:
        words = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}"
    return f"{type(error).__name__}: {words}"


def _sources(launches: list[Any]) -> tuple[Source, ...]:
    return tuple(source_of(kernel) for kernel in dict.fromkeys(launches))
