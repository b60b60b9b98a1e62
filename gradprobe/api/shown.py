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

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the report in the form that the name ends with: .json, .html, .md, .xml (JUnit) or .sarif.

        Raises:
            UsageFailure: it ends otherwise.
            OSError: the file cannot be written.
        """
        from ..commands.suite.checked import code_of_report
        from ..render.files import maker_of, replace_file

        path = PurePath(os.fspath(file))
        if path.suffix not in _FORMS:
            raise UsageFailure(f"save: no form for {path.name!r}", f"known: {', '.join(_FORMS)}")
        several = Reports(reports=(self,), origin=self.origin)
        replace_file(str(path), maker_of(_FORMS[path.suffix])(several, code_of_report(self)))


def shown(report: Report) -> ShownReport:
    """The same report."""
    return ShownReport(**{name: getattr(report, name) for name in report.__struct_fields__})
