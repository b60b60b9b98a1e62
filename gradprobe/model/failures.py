"""Exceptions that carry a sentence, a way out and an exit code."""

from __future__ import annotations

import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The exit code that shells give a command that was ended by Ctrl-C.
INTERRUPTED = 130


class Failure(Exception):
    exit_code = 3

    def __init__(self, message: str, way_out: str = "", details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.way_out = way_out
        self.details = details


class UsageFailure(Failure):
    exit_code = 2


def refuse_if(is_wrong: bool, words: str, way_out: str = "") -> None:
    if is_wrong:
        raise UsageFailure(words, way_out)


class UntestedVersion(Failure):
    pass


class TargetFailure(Failure):
    """The target cannot be run or returned what it may not return."""


class NoKernel(TargetFailure, AttributeError):
    """A CUDA source has no such kernel; `hasattr` of its module is False."""


class Refusal(TargetFailure):
    """The target raised on purpose in every layout."""


class RanksFailure(TargetFailure):
    """A rank died, raised alone or waits for ever."""


class KernelStopped(TargetFailure):
    """A CUDA kernel on the CPU left its memory, or waits forever."""


class DeviceLost(TargetFailure):
    """No kernel can run on the GPU in this process any more."""


class NoRoom(Failure):
    pass


class InputsFailure(Failure):
    pass


class ReferenceFailure(Failure):
    pass


def text_of(error: BaseException) -> str:
    """A target's own class may fail to give it."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be read: its __str__ raises"


def fault_words(error: BaseException) -> str:
    words = text_of(error)
    if not words and error.__traceback__:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{type(error).__name__}: {words}"


@contextlib.contextmanager
def own_faults(notes: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        notes.append(f"{what}, by a fault of gradprobe: {fault_words(error)}")


def as_failure(error: BaseException) -> Failure:
    """Others are faults of gradprobe, and a SystemExit one of the target."""
    if isinstance(error, Failure):
        return error
    if not isinstance(error, Exception):
        words = f": {text_of(error)}" if text_of(error) else ""
        raised = f"the target raised {type(error).__name__}{words}"
        return TargetFailure(raised, "--traceback shows where")
    own = f"gradprobe itself failed: {fault_words(error)}"
    return Failure(own, "run again with --traceback and report it")


def did_you_mean(word: str, known: Iterable[str], listed: str = "known") -> str:
    """`did you mean 'lazy'?`, then all after the word `listed`."""
    import difflib

    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(names))
    # The same letters in another order come first.
    close.sort(key=lambda name: sorted(name) != sorted(word.lower()))
    ways = [f"did you mean {names[close[0]]!r}?"] if close else []
    ways += [f"{listed}: {', '.join(names.values()) or 'none'}"] if listed else []
    return " ".join(ways)
