"""Target on Inputs -> Outcome: a Trace, or the words with which the target refused the layout."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cases.case import Case
from ..cases.layouts import AS_SAVED, Inputs
from ..cases.shapes import taken
from ..cuda import Finding, Watch, watched
from ..cuda.unit import Entry
from ..device import words_of_loss
from ..failures import DeviceLost, NoRoom, Refusal, TargetFailure, text_of
from ..intermediates import lookup
from ..targets.bind import bind
from ..targets.find import Target
from ..targets.provenance import Source, source_of
from ..targets.stand_in import gpu_stood_in
from .backend import interpreting
from .configurations import Configuration, one_configuration
from .launches import Launched, given_where_they_lay, recorded_launches, storage_of
from .sharing import Shared, shared
from .taps import Session as TapSession
from .taps import Tap, tapped
from .trace import Trace, expected_shapes, read_trace, straightened, with_tapped
from .unwritten import Unwritten

if TYPE_CHECKING:
    from torch import Tensor

# What a wrapper raises on purpose; anything else (IndexError, AttributeError, ...) is an accident, never a refusal.
_DELIBERATE = (ValueError, TypeError, NotImplementedError, AssertionError, RuntimeError)
# What tensor descriptors ask of where a tensor lies, in the words of Triton's interpreter.
_OF_DESCRIPTORS = ("base must be 16-byte aligned", "stride must be 16-byte aligned", "last dim must be contiguous")


@dataclass(frozen=True)
class Outcome:
    """What one run of a target came to."""

    trace: Trace | None
    """None where the target refused the layout."""
    refused: str | None
    """Its words when it refused."""
    kernels: tuple[Source, ...]
    """The kernels that it launched, in order of their first launch."""
    interpreted: bool
    """Whether Triton's interpreter ran them."""
    launched: tuple[Any, ...]
    """The kernels themselves."""
    taken: frozenset[str]
    """The inputs that kernels were given where they lay, and not copies alone."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the taps."""
    storages: Mapping[int, str] = field(default_factory=dict)
    """The storages of what the target returned, by address: which intermediate lies there."""
    cuda: str = ""
    """Where CUDA kernels of a source ran, "cuda" or "cuda-on-cpu"; "" where none did."""
    findings: tuple[Finding, ...] = ()
    """What those on the CPU did to memory that they should not have."""
    shared: tuple[Shared, ...] = ()
    """The gradients that lie in the memory of an input, or of one another."""
    configurations: tuple[Configuration, ...] = ()
    """Those of autotuned kernels that ran, where none was chosen by time."""


def run_target(
    target: Target,
    case: Case,
    inputs: Inputs,
    taps: Sequence[Tap] = (),
    around: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
    *,
    schedule: int = 0,
    unwritten: Unwritten | None = None,
    launched: Launched = lambda kernel: None,
) -> Outcome:
    """Runs the target once, with taps in its Triton kernels where some are given.

    A run that raises on purpose is a refusal, with its words, but not where the tensors are contiguous or lie as the
    user's own program had them. Outputs are read before they leave here, so an error of an asynchronous kernel belongs
    to the target.

    Args:
        around: entered around the target's own code, and nothing else.
        schedule: which order the threads and blocks of CUDA kernels on the CPU take; 0: as they are numbered.
        unwritten: which memory has no value as yet, as far as it is known.
        launched: told of each kernel after its launch.

    Raises:
        UsageFailure: from `bind`.
        Refusal: the target raised on purpose where it may not.
        DeviceLost: its kernels failed so that this process has no device any more.
        TargetFailure: it raised by accident, or returned what it may not.
    """
    arguments = bind(target, case, inputs.tensors)
    taken: set[str] = set()
    watch = Watch(inputs.tensors, schedule, unwritten or Unwritten(), after=launched)
    ran: list[Configuration] = []
    recorded = recorded_launches(inputs.tensors, taken, launched)
    with _tapped(taps, case) as session, recorded as launches, watched(watch):
        try:
            with (
                around,
                _telling_of_a_lost_device(target, inputs),
                gpu_stood_in(as_cuda=case.as_cuda),
                _configured(ran, case),
            ):
                result = _call(target, case, arguments, inputs)
                _synchronize(inputs)
        except (TargetFailure, NoRoom):
            raise
        except Exception as error:
            if not _refuses(error):
                raise TargetFailure(*_raised(target, case, inputs, error)) from error
            if inputs.layout in ("contiguous", AS_SAVED):
                raise Refusal(*_raised(target, case, inputs, error)) from error
            kernels = _sources(launches, watch.launches)
            return Outcome(None, _words(error), kernels, interpreting(), tuple(launches), frozenset(taken))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and what test runners fail and skip by
            raise TargetFailure(*_raised(target, case, inputs, error)) from error
    outputs = {name: inputs.tensors[name] for name in target.outputs if name in inputs.tensors}
    trace = read_trace(result, case, f"target {target.name!r}", outputs)
    reading = session.read() if session else None
    trace = with_tapped(trace, reading.values, case) if reading else trace
    notes = (*(reading.notes if reading else ()), *_without_host_code(watch.launches))
    taken |= given_where_they_lay(inputs.tensors, watch.given)
    of_memory = shared(result, inputs.tensors, case.inplace, by_autograd=not target.is_backward)
    return Outcome(
        trace, None, _sources(launches, watch.launches), interpreting(), tuple(launches), frozenset(taken), notes,
        _storages(result), max(watch.backends, default=""), tuple(watch.findings), tuple(of_memory),
        tuple(dict.fromkeys(ran)),
    )  # fmt: skip


def _configured(ran: list[Configuration], case: Case) -> AbstractContextManager[None]:
    """One configuration of each autotuned kernel in the interpreter, and where all are asked for, one after another."""
    return one_configuration(ran, dict(case.pinned)) if interpreting() or case.configs == "all" else nullcontext()


def _storages(result: object) -> dict[int, str]:
    named = result.items() if isinstance(result, Mapping) else ()
    return {storage_of(tensor): str(name) for name, tensor in named if tensor is not None}


def _tapped(taps: Sequence[Tap], case: Case) -> AbstractContextManager[TapSession | None]:
    return tapped(taps, expected_shapes(case), case.device) if taps else nullcontext()


def _call(target: Target, case: Case, arguments: dict[str, Any], inputs: Inputs) -> object:
    """A target's warnings are its own affair; numpy's, in the interpreter, are about numbers no GPU would remark on."""
    import numpy as np

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
        with target.around.inside():
            if target.is_backward:
                return target.function(**arguments)
            return _through_autograd(target, case, arguments, inputs.tensors["do"])


def _through_autograd(target: Target, case: Case, arguments: dict[str, Any], do: Tensor) -> Mapping[str, Any]:
    """A forward's gradients for the case's own dO, and what else it returned by name.

    Leaves keep the layouts of the tensors they are made from.
    """
    import torch

    gradients = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sinks": "dSink", "tau": "dTau"}
    names = {
        name: own for name, own in target.takes.items()
        if name in gradients and own in arguments and arguments[own].is_floating_point()
    }  # fmt: skip
    leaves = {name: arguments[own].detach().requires_grad_() for name, own in names.items()}
    result = target.function(**arguments | {names[name]: leaf for name, leaf in leaves.items()})
    exposed = _by_name(target, result)
    output = exposed["O"]
    straightened(output, "O", case, f"target {target.name!r}")
    if not output.requires_grad:
        raise TargetFailure(
            f"target {target.name!r} is not differentiable: its output does not require grad",
            "a forward is differentiated through autograd; a backward takes a parameter `do`",
        )
    found = torch.autograd.grad(output, list(leaves.values()), taken(do, "do", case.shapes), allow_unused=True)
    results = {name: gradient for name, gradient in zip(leaves, found, strict=True)}
    # To autograd a gradient that never comes is 0, and so it is to an optimizer. That bias or sinks is no parameter of
    # a forward is common, and said by None; q, k and v always are.
    for name in ("q", "k", "v"):
        results[name] = torch.zeros_like(leaves[name]) if results[name] is None else results[name]
    return exposed | {gradients[name]: gradient for name, gradient in results.items()}


def _by_name(target: Target, result: object) -> dict[str, Any]:
    """What a forward returned: O, and where it returned a dict the other intermediates in it."""
    import torch

    if isinstance(result, Mapping):
        o = [key for key in result if (row := lookup(str(key))) is not None and row.name == "O"]
        exposed = {key: value for key, value in result.items() if key not in o}
        output = result[o[0]] if len(o) == 1 else None
    else:
        exposed = {}
        output = result[0] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(output, torch.Tensor):
        what = f"a dict of {', '.join(map(str, result))}" if isinstance(result, Mapping) else type(output).__name__
        raise TargetFailure(
            f"target {target.name!r} takes no dO, so it is a forward and must return its output tensor, got {what}",
            "return O, or (O, ...), or {'O': o, 'LSE': lse}; or take a parameter `do`, as a backward does",
        )
    return {"O": output} | exposed


def _synchronize(inputs: Inputs) -> None:
    if inputs.tensors["q"].is_cuda:
        import torch

        torch.cuda.synchronize()


@contextmanager
def _telling_of_a_lost_device(target: Target, inputs: Inputs) -> Iterator[None]:
    """Whatever was raised inside, the device is asked first: once it is lost, all that is raised follows from that."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if (words := words_of_loss()) is None:
            raise
        raise DeviceLost(
            f"target {target.name!r} left this process without its device ({inputs.layout}): {words}",
            "gradprobe check TARGET --device cpu watches every access; --sanitize memcheck names the line on the GPU",
        ) from error


def _is_a_crash(error: Exception) -> bool:
    """A RuntimeError of the device, of want of memory, or of Triton's compiler or interpreter, is no refusal."""
    words = text_of(error)
    of_driver = any(word in words for word in ("CUDA error", "[CUDA]", "CUDA_ERROR_"))
    without_room = "out of memory" in words or "DefaultCPUAllocator: " in words
    return of_driver or without_room or type(error).__module__.partition(".")[0] == "triton"


def _refuses(error: Exception) -> bool:
    """Whether it was raised on purpose."""
    return _is_of_a_descriptor(error) or (isinstance(error, _DELIBERATE) and not _is_a_crash(error))


def _is_of_a_descriptor(error: Exception) -> bool:
    """Whether the interpreter refuses a descriptor of these tensors, as a GPU's copy engine would."""
    inner = _in_the_kernel(error)
    return inner is not error and isinstance(inner, AssertionError) and str(inner) in _OF_DESCRIPTORS


def _raised(target: Target, case: Case, inputs: Inputs, error: BaseException) -> tuple[str, str]:
    """What a failure says of it, and the way out."""
    kind, _, words = _words(error).partition(": ")
    if isinstance(error, TypeError) and case.window is not None and "window" in target.takes:
        pair = f"{target.takes['window']}={case.window}"
        words += f"; it was passed the pair {pair}, which --window says"
    made = f"it changes, for all of its process, {target.around.words}; " if target.around.words else ""
    return f"target {target.name!r} raised {kind} ({inputs.layout}): {words}", f"{made}--traceback shows where"


def _words(error: BaseException) -> str:
    """An exception in one line; where it has no message, or comes out of a kernel, with the line that raised it."""
    inner = _in_the_kernel(error)
    words = text_of(inner).strip()
    frames = [
        frame for frame in traceback.extract_tb(inner.__traceback__)
        if inner is error or Path(frame.filename).parent.parts[-1:] not in (("runtime",), ("language",))
    ]  # fmt: skip
    if frames and (not words or inner is not error):
        words = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {words or frames[-1].line}"
    return f"{type(error).__name__}: {words}"


def _in_the_kernel(error: BaseException) -> BaseException:
    """What a kernel raised, where Triton's interpreter says so in an exception of its own."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


def _without_host_code(entries: list[Entry]) -> Iterator[str]:
    return filter(None, (source.left_out for source in dict.fromkeys(entry.unit.source for entry in entries)))


def _sources(launches: list[Any], entries: list[Entry]) -> tuple[Source, ...]:
    of_cuda = (
        Source(entry.name, str(entry.file), entry.line, entry.unit.source.sha256) for entry in dict.fromkeys(entries)
    )
    return (*(source_of(kernel) for kernel in dict.fromkeys(launches)), *of_cuda)
