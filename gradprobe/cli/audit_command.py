"""`gradprobe audit`: is it the reference that is wrong?"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from ..inputs.history import CheckRequest
from ..model.documents import Reports
from ..model.layout_run import MATCH
from ..model.report import Report
from . import shared_options as shared
from .error_output import failures_told
from .own_process import apart
from .report_forms import Forms, with_page


@shared.with_case_options
@partial(with_page, details=False)
def audit(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="FILE.py:FUNCTION or MODULE:FUNCTION")
    ],
    family: shared.Family = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Judge a reference of your own, and name its first wrong formula with its line.

    It is called as its parameters' names say, in torch or numpy, for one head or many, with and without a causal mask,
    and judged by the built-in formulas. A wrong one exits with 1.
    """
    request = CheckRequest(reference, family, None, options)
    with failures_told(forms, request.command("audit"), show_traceback, reference):
        shared.refuse_wrong_words(request)
        report = apart(
            _audited, request, target=reference, isolate=isolate, show_traceback=show_traceback
        )
        forms.show(report)
        raise typer.Exit(
            forms.write(Reports(reports=(report,)), 0 if report.verdict == MATCH else 1)
        )


def _audited(request: CheckRequest) -> Report:
    from ..commands.audit_request import audited

    return audited(request)
