"""Why the tool could not do its work: exceptions that carry a sentence, a way out and an exit code."""

from __future__ import annotations

import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The exit code that shells give a command that was ended by Ctrl-C.
INTERRUPTED = 130


class Failure(Exception):
    """The tool cannot go on; `way_out` says what to do."""

    exit_code = 3

    def __init__(self, message: str, way_out: str = "", details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.way_out = way_out
        self.details = details


class UsageFailure(Failure):
    """The command, a configuration or a name in it is wrong."""

    exit_code = 2


def refuse_if(is_wrong: bool, words: str, way_out: str = "") -> None:
    if is_wrong:
        raise UsageFailure(words, way_out)


class UntestedVersion(Failure):
    """An installed package has a version that gradprobe is not tested with."""


class TargetFailure(Failure):
    """The target is there but cannot be run or returned what it may not return."""


class NoKernel(TargetFailure, AttributeError):
    """A CUDA source has no kernel of that name; `hasattr` of its module is False."""


class Refusal(TargetFailure):
    """The target raised on purpose in every layout: it does not take the case."""


class RanksFailure(TargetFailure):
    """A rank of a sharded target died, raised alone or waits for ever."""


class KernelStopped(TargetFailure):
    """A CUDA kernel on the CPU left its memory, or its threads wait for one another forever."""


class DeviceLost(TargetFailure):
    """A kernel failed so that this process cannot use the GPU any more."""


class NoRoom(Failure):
    """A tensor does not fit into the memory that the command may take."""


class InputsFailure(Failure):
    """What a file of inputs holds contradicts itself."""


class ReferenceFailure(Failure):
    """It failed its audit, so no verdict about a target may rest on it."""


def text_of(error: BaseException) -> str:
    """The message of an exception; a target's own class may fail to give it."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be read: its __str__ raises"


def fault_words(error: BaseException) -> str:
    """The kind of an error of this tool, and its message or else its line."""
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
    """Any other Exception is a fault of gradprobe, and a SystemExit one of the target."""
    if isinstance(error, Failure):
        return error
    if not isinstance(error, Exception):
        words = f": {text_of(error)}" if text_of(error) else ""
        raised = f"the target raised {type(error).__name__}{words}"
        return TargetFailure(raised, "--traceback shows where")
    own = f"gradprobe itself failed: {fault_words(error)}"
    return Failure(own, "run again with --traceback and report it")


def did_you_mean(word: str, known: Iterable[str], listed: str = "known") -> str:
    """`did you mean 'lazy'?` where one is close, then all that are known after the word `listed`."""
    import difflib

    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(names))
    # The same letters in another order come first.
    close.sort(key=lambda name: sorted(name) != sorted(word.lower()))
    ways = [f"did you mean {names[close[0]]!r}?"] if close else []
    ways += [f"{listed}: {', '.join(names.values()) or 'none'}"] if listed else []
    return " ".join(ways)
