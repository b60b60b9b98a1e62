"""Reports as JSON: gradprobe.report/2, or gradprobe.reports/1 of several."""

from __future__ import annotations

from ..model.documents import Reports, several_document, text_of
from .incomplete import unfinished


def text(several: Reports, code: int | None) -> str:
    """The document.

    Args:
        code: the exit code of the command; None as long as it runs.
    """
    whole = several_document(several)
    return text_of(unfinished(whole) if code is None else whole)
