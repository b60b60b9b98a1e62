"""The assertion, and the report that it raises or returns."""

from typing import Any

from ..api.arguments import Subject, requested
from ..api.shown_report import ShownReport, shown
from ..inputs.versions import refuse_untested
from ..model.failures import as_failure
from ..pipeline.reported import report_of
from ..pipeline.run_check import run_check
from ..targets.surroundings import ordinary_torch


def assert_backward_matches(
    target: Subject,
    *,
    reference: Subject | None = None,
    family: str | None = None,
    **options: Any,
) -> ShownReport:
    """Checks a target as `gradprobe check` does, in this process. Returns the report where it matches, else raises it.

        assert_backward_matches(my_backward, heads=4, kv_heads=2, causal=True, dtype=torch.float16)
        assert_backward_matches("attention.py:backward", window=(16, 0), layout=["do=blhd", "q=distinct"])

    Its arguments are those of `gradprobe.check`.

    Raises:
        AssertionError: a mismatch. The message is what `gradprobe check` prints.
        TypeError: an option does not exist, or a value has another type than the option takes.
        Failure: from gradprobe.model.failures, where there is no verdict: an option is wrong (UsageFailure), the
            target could not be run or gave nothing to compare (TargetFailure), or the reference failed its audit.
    """
    __tracebackhide__ = True
    report = report_on(target, reference=reference, family=family, **options)
    if report.failing:
        raise AssertionError(report.text(rest=""))
    return report


def report_on(
    target: Subject,
    *,
    reference: Subject | None = None,
    family: str | None = None,
    **options: Any,
) -> ShownReport:
    """The report of `gradprobe check`, whatever its verdict. Raises what `assert_backward_matches` does."""
    __tracebackhide__ = True
    request = requested(target, reference, family, options)
    functions = [None if isinstance(each, str) else each for each in (target, reference)]
    command = request.command() if request.target and request.reference != "" else ""
    try:
        if not request.options.get("untested"):
            refuse_untested()
        with ordinary_torch():
            checked = run_check(request, command, target=functions[0], reference=functions[1])
            return shown(report_of(checked))
    except Exception as error:
        failure = as_failure(error)
        # A test runner shows the message alone, and the traceback anyway.
        way_out = "" if "--traceback" in failure.way_out else failure.way_out
        told = type(failure)(f"{failure}\n  {way_out}" if way_out else str(failure), way_out)
        cause = failure.__cause__ if failure is error else error
        # Its traceback begins where it leaves this package, if it does.
        trace, package = cause.__traceback__ if cause else None, __package__.partition(".")[0]
        while trace and trace.tb_frame.f_globals.get("__name__", "").startswith(f"{package}."):
            trace = trace.tb_next
        raise told from cause.with_traceback(trace) if cause and trace else cause
