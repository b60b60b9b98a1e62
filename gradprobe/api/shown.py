"""ShownReport: a report that tells itself: to a notebook, to `print`, and into files."""

from __future__ import annotations

import os
from pathlib import PurePath

from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.report import Report

# What a file's name ends with, and the form that it holds.
_FORMS = {".json": "--json", ".html": "--html", ".md": "--markdown", ".xml": "--junit", ".sarif": "--sarif"}


class ShownReport(Report, frozen=True, kw_only=True):
    """A Report, as `gradprobe.check` returns it. `verdict` is match, mismatch or error; `error` says why."""

    def __str__(self) -> str:
        """What `gradprobe check` prints, without colours."""
        from ..render.terminal import Terminal, rendered, width

        if not self.measured:
            return repr(self)
        return "\n".join(line.plain for line in rendered(self, Terminal(width(), None, utf8=True)))

    def __repr__(self) -> str:
        """The verdict, in a line."""
        from ..render.console import headline

        if self.error is not None or not self.measured:
            why = self.error.message if self.error else "nothing was compared"
            return f"{self.verdict.upper()}  {self.name}: {why}"
        first, *_ = headline(self, 10_000)
        return first.plain

    def _repr_html_(self) -> str:
        """The page in small, for notebooks."""
        from ..render.page.small import small_of

        return small_of(self)

    def save(self, file: str | os.PathLike[str], *, evidence: str | os.PathLike[str] | None = None) -> None:
        """Writes the report in the form that the name ends with: .json, .html, .md, .xml (JUnit) or .sarif.

        Args:
            evidence: what the check's own `evidence` wrote, for the page to open every tile of it.

        Raises:
            UsageFailure: it ends otherwise, or the evidence is not that of this report.
            OSError: the file cannot be written.
        """
        from ..commands.suite.checked import code_of_report
        from ..render.files import maker_of, replace_file

        path, several = PurePath(os.fspath(file)), Reports(reports=(self,), origin=self.origin)
        flag, code = _FORMS.get(path.suffix.lower()), code_of_report(self)
        if flag is None or (evidence is not None and flag != "--html"):
            of = f"{path.name!r} with evidence" if flag else repr(path.name)
            raise UsageFailure(
                f"save: no form for {of}", "a page (.html) shows it" if flag else f"known: {', '.join(_FORMS)}"
            )
        if evidence is None:
            replace_file(str(path), maker_of(flag)(several, code))
            return
        from ..render.page.page import text
        from ..render.page.values import refuse_others

        refuse_others(os.fspath(evidence), several.reports)
        replace_file(str(path), text(several, code, os.fspath(evidence)))


def shown(report: Report) -> ShownReport:
    """The same report."""
    return ShownReport(**{name: getattr(report, name) for name in report.__struct_fields__})
