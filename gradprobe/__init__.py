"""gradprobe: runs an attention backward kernel beside a float64 reference and points at the first wrong number."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: that takes longer than all that a command does first
    from collections.abc import Callable
    from typing import Any

    from .api.shown_report import ShownReport as Report

    Target = str | Callable[..., Any]

__all__ = ["Report", "check"]
__version__ = "0.1.0"


def check(target: Target, **options: Any) -> Report:
    """Runs a target beside the float64 reference, as `gradprobe check` does, and returns its report.

        report = gradprobe.check(my_backward, heads=4, causal=True)
        report = gradprobe.check("attention.py:backward", window=(16, 0), layout={"do": "blhd"})

    In a notebook the report shows itself; `print(report)` prints what the command prints, `report.verdict` is match,
    mismatch or error, and `report.save("report.html")` writes a page.

    Args:
        target: a function that the command line could check, or the word by which it would find one. A function is
            run in this process, as it is now; a word in a process of its own, so that a crash of it is a report.
        options: the case options of `gradprobe check --help-all` by the same names, as Python values: numbers, True and
            False; for `dtype` also one of torch's; for `layout` one word, several, or a dict; a tuple where the command
            line takes numbers with commas. None stands for the default. And besides

            - reference: a reference of your own, given as a target is. It is audited first.
            - family: "softmax" or "lazy"; by default lazy where the target takes tau.
            - isolate: whether it runs in a process of its own; by default where target and reference are words.
            - timeout: seconds after which a process of its own is stopped.
            - fix_budget: how many edits of a wrong kernel are tried, by default 40; 0 tries none.
            - max_memory: such as "3G"; by default half of what is free.
            - against: another target, given as one is, a report, the file of one, or "interpreted" or "compiled" for
              the same target: it is judged too, and the report's `against` says where they differ.
            - fresh: whether every cache of compiled kernels is to be empty.

    Raises:
        TypeError: an option does not exist, or a value has another type than the option takes.
        UsageFailure: from gradprobe.model.failures: a name or a value is wrong, as for exit code 2.
    """
    from .api.check_function import checked

    return checked(target, options)


def __getattr__(name: str) -> Any:
    if name != "Report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .api.shown_report import ShownReport

    return ShownReport
