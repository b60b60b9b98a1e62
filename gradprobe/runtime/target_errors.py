"""A target's exception: a refusal, a failure, or a limit of the interpreter."""

from pathlib import Path

from ..frontends.triton.raised import compiler_place, describe_line, raised_lines
from ..model.assignment import AS_SAVED
from ..model.failures import DeviceLost, NoRoom, Refusal, TargetFailure, text_of
from ..processes.resource_limits import words_of_loss
from ..targets.find import Target
from ..targets.surroundings import kept_warnings, warning_lines

# What a wrapper raises on purpose. Anything else (IndexError, AttributeError, ...) is an accident, not a refusal.
_DELIBERATE = (ValueError, TypeError, NotImplementedError, AssertionError, RuntimeError)
# What the driver and allocators say.
_ACCIDENTS = ("CUDA error", "[CUDA]", "CUDA_ERROR_", "out of memory", "DefaultCPUAllocator: ")
# What tensor descriptors require of a layout, in the words of Triton's interpreter.
_OF_DESCRIPTORS = ("must be 16-byte aligned", "last dim must be contiguous")
# A message of a target that has more lines is cut behind its first paragraph.
_LONGEST_LINES = 12
# What the interpreter raises of what it lacks. A kernel's own assertion is no limit.
_OF_LIMITS = (AttributeError, TypeError, NotImplementedError, NameError, ValueError)


def refusal_of(error: BaseException, target: Target, layout: str) -> str:
    """The words of a refusal; or raises DeviceLost, Refusal, TargetFailure."""
    name = f"target {target.name!r}"
    # Once the device is lost, every exception follows from that.
    if (lost := words_of_loss()) is not None:
        words = f"{name} left this process without its device ({layout}): {lost}"
        way_out = "--device cpu, or compute-sanitizer, names the line"
        raise DeviceLost(words, way_out) from error
    if isinstance(error, (TargetFailure, NoRoom)):
        raise error
    inner = error  # what a kernel raised, which Triton's interpreter wraps in its own
    while type(inner).__name__ == "InterpreterError" and inner.__cause__ is not None:
        inner = inner.__cause__
    refuses, kind = _refuses(error, inner), type(error).__name__
    words = _message_of(error, inner)
    if refuses and layout not in ("contiguous", AS_SAVED):
        return f"{kind}: {words}"
    message, way_out = f"{name} raised {kind} ({layout}): {words}", "--traceback shows where"
    if not refuses and inner is not error and isinstance(inner, _OF_LIMITS):
        way_out = "if it compiles, that is a limit of Triton's interpreter: use a GPU, or rewrite that line"
    if changed := target.surroundings.sentence:
        way_out = f"it changes, for all of its process, {changed}; {way_out}"
    details = (*describe_line(error), *warning_lines(kept_warnings()))
    raise (Refusal if refuses else TargetFailure)(message, way_out, details) from error


def _refuses(error: BaseException, inner: BaseException) -> bool:
    # The interpreter refuses a descriptor of these tensors, as a GPU's copy engine would.
    if isinstance(inner, AssertionError) and str(inner).endswith(_OF_DESCRIPTORS):
        return True
    words, is_triton = text_of(error), type(error).__module__.partition(".")[0] == "triton"
    is_accident = is_triton or any(each in words for each in _ACCIDENTS)
    return isinstance(error, _DELIBERATE) and not is_accident


def _message_of(error: BaseException, inner: BaseException) -> str:
    if found := compiler_place(error):
        place, words = found
        return f"{Path(place.file).name}:{place.line}: {words}"
    words = text_of(inner).strip()
    if words.count("\n") >= _LONGEST_LINES:
        words = words.partition("\n\n")[0]
    lines = raised_lines(error)
    if not lines or (words and inner is error):
        return words
    place = lines[-1].place
    return f"{Path(place.file).name}:{place.line}: {words or place.code}"
