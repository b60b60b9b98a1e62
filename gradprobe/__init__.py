"""gradprobe: runs an attention backward kernel beside a float64 reference and points at the first wrong number."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: that takes longer than all that a command does first
    from collections.abc import Callable
    from typing import Any, Literal, overload

    from typing_extensions import Unpack

    from .api.check_function import CheckOptions
    from .api.shown_report import ShownReport as Report
    from .api.shown_report import ShownReports as Reports

    Target = str | Callable[..., Any]

__all__ = ["Report", "Reports", "capture", "check"]
__version__ = "0.1.0"


def capture(
    function: Any = None,
    *,
    folder: str = ".gradprobe/captures",
    keep: int = 16,
    order: str = "bhld",
) -> Any:
    """Keeps the real inputs and dO of an attention function, for `gradprobe check TARGET --inputs FILE`.

    `capture(function)` returns a function to call in its place, which does the same and keeps q, k, v, bias, the other
    inputs and the incoming dO, once for each shape and layout, as files in `folder`. It may decorate:
    `@gradprobe.capture` or `@gradprobe.capture(keep=4)`. Values, gradients and random numbers of the program stay what
    they are.

    Args:
        folder: where the files go.
        keep: how many sets of inputs at most.
        order: the function's order of axes, "bhld" or "blhd". What is kept is [B, H, L, D], as the tensors lay; the
            target that is checked with it takes that order, so for a function of the other one it is an adapter.

    Raises:
        UsageFailure: it is no function, or an option has no such value.
    """
    from pathlib import Path

    from .commands.record.capture import CapturePlan
    from .commands.record.capture import capture as start

    return start(function, CapturePlan(Path(folder), keep, order))


if TYPE_CHECKING:

    @overload
    def check(
        target: Target, *, battery: None = None, **options: Unpack[CheckOptions]
    ) -> Report: ...

    @overload
    def check(
        target: Target,
        *,
        battery: Literal["pairs", "quick", True],
        **options: Unpack[CheckOptions],
    ) -> Reports: ...


def check(
    target: Target, *, battery: str | bool | None = None, **options: Unpack[CheckOptions]
) -> Report | Reports:
    """Runs a target beside the float64 reference, as `gradprobe check` does, and returns its report.

        report = gradprobe.check(my_backward, heads=4, causal=True)
        report = gradprobe.check("attention.py:backward", window=(16, 0), layout={"do": "blhd"})

    In a notebook the report shows itself; `print(report)` prints what the command prints, `report.verdict` is match,
    mismatch or error, and `report.save("report.html")` writes a page.

    Args:
        target: a function that the command line could check, or the word by which it would find one. A function is
            run in this process, as it is now; a word in a process of its own, so that a crash of it is a report.
        battery: "pairs", or True for it, or "quick": checks many cases of a target that is a word, in processes of
            their own, without edits, and returns all their reports.
        options: those of `gradprobe.api.check_function.CheckOptions`, and the case options of `gradprobe check --help`
            by the same names, as Python values: numbers, True and False; for `dtype` also one of torch's; for `layout`
            one word, several, or a dict; a tuple where the command line takes numbers with commas. None stands for the
            default.

    Raises:
        TypeError: an option does not exist, or a value has another type than the option takes.
        UsageFailure: from gradprobe.model.failures: a name or a value is wrong, as for exit code 2.
    """
    from .api.check_function import checked

    return checked(target, battery, {**options})


def __getattr__(name: str) -> Any:
    if name not in ("Report", "Reports"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .api.shown_report import ShownReport, ShownReports

    return {"Report": ShownReport, "Reports": ShownReports}[name]
