"""ShownReport: a report that tells itself: to a notebook, to `print`, and into files."""

import os
from pathlib import PurePath

from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.report import Report
from ..model.writing import replace_file

# By what a file's name ends with.
_FORMS = {
    ".json": "--json", ".html": "--html", ".md": "--markdown", ".xml": "--junit", ".sarif": "--sarif"
}  # fmt: skip


class ShownReport(Report, frozen=True, kw_only=True):
    """A Report, as `gradprobe.check` returns it. `verdict` is match, mismatch or error; `error` says why."""

    def __str__(self) -> str:
        """What `gradprobe check` prints, without colours."""
        return self.text()

    @property
    def details(self) -> str:
        return self.text(details=True)

    def text(self, *, details: bool = False, rest: str = "print(report.details)") -> str:
        """What `gradprobe check` prints; `rest` shows all of it."""
        from ..render.screen import rendered
        from ..render.terminal import Terminal, plain, width

        if not self.measured:
            lines = (*self.error.details, self.error.way_out) if self.error else ()
            return "\n".join([repr(self), *(f"  {line}" for line in lines if line)])
        return plain(rendered(self, Terminal(width(), None, True, details, rest)))

    def __repr__(self) -> str:
        """The verdict, in a line."""
        from ..render.console import headline

        if self.error is not None or not self.measured:
            why = self.error.message if self.error else "nothing was compared"
            return f"{self.verdict.upper()}  {self.name}: {why}"
        return headline(self, 10_000)[0].plain

    def _repr_html_(self) -> str:
        from ..render.page import small_of

        return small_of(Reports(reports=(self,)), self.verdict, str(self))

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the report in the form that the name ends with: .json, .html, .md, .xml (JUnit) or .sarif.

        Raises:
            UsageFailure: it ends otherwise.
            OSError: the file cannot be written.
        """
        from ..commands.suite.outcome import code_of_report
        from ..render.files import maker_of

        path, several = PurePath(os.fspath(file)), Reports(reports=(self,), origin=self.origin)
        flag = _FORMS.get(path.suffix.lower())
        if flag is None:
            raise UsageFailure(f"save: no form for {path.name!r}", f"known: {', '.join(_FORMS)}")
        replace_file(str(path), maker_of(flag)(several, code_of_report(self)))


def shown(report: Report) -> ShownReport:
    return ShownReport(**{name: getattr(report, name) for name in report.__struct_fields__})
