"""What the last check in this folder was and what it came to, so that `diff` can repeat it, or need not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import OPTIONS, command_line

if TYPE_CHECKING:
    from ..model.report import Report

FOLDER = Path(".gradprobe")
"""What commands leave for those after them."""
FILE = FOLDER / "last.json"
# Sources beside those of a target, which it may import.
_SOURCES = {".py", ".cu", ".cuh", ".h", ".hpp"}


@dataclass(frozen=True)
class CheckRequest:
    """A target and the options given with it, as words of the command line."""

    target: str
    family: str | None
    reference: str | None
    options: Mapping[str, Any]

    def command(self, name: str = "check", **more: Any) -> str:
        """The command line of `check`, or of another command, with more options of that command's own."""
        return command_line(
            name, self.target, self.options, {"family": self.family, "reference": self.reference, **more}
        )


def make_folder() -> None:
    """Makes the folder, which git is told to ignore."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")


def save(request: CheckRequest, report: Report | None = None) -> bool:
    """Writes the file, and says whether it did: a folder that cannot be written is no reason to fail a check."""
    if "GRADPROBE_MUTANT" in os.environ:  # of a copy with a fault in it, which soon is gone
        return False
    from ..model.documents import document_of

    kept = {"report": document_of(report)} if report is not None else {}
    with contextlib.suppress(OSError):
        make_folder()
        FILE.write_text(json.dumps(asdict(request) | kept, indent=2))
        return True
    return False


def load() -> CheckRequest | None:
    """The last check; None where there is none, or what is there is not one."""
    try:
        words = {name: word for name, word in _document().items() if name != "report"}
        request = CheckRequest(**words)
    except (TypeError, AttributeError):
        return None
    return request if is_sound(request) else None


def kept_report(request: CheckRequest) -> Report | None:
    """The last report, where it is of this very check and the sources are those that ran; else None."""
    from ..model.documents import report_from
    from ..model.failures import UsageFailure

    document = _document().get("report")
    if document is None or load() != request or {"inputs"} & request.options.keys() or request.reference is not None:
        return None
    try:
        report = report_from(document)
    except UsageFailure:
        return None
    return report if _are_the_same(report) else None


def last_report() -> Report | None:
    """The report of the last check, whatever it was of and whatever its files hold now; None where none is kept.

    Raises:
        UsageFailure: what is kept is no report.
    """
    from ..model.documents import report_from

    document = _document().get("report")
    return None if document is None else report_from(document)


def _document() -> dict[str, Any]:
    try:
        document = json.loads(FILE.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _are_the_same(report: Report) -> bool:
    """Whether the target's and kernels' files hold what ran, and nothing beside them is newer than the report."""
    target = report.target
    files = {target.file: target.sha256, **{kernel.file: kernel.sha256 for kernel in target.kernels}}
    try:
        same = all(hashlib.sha256(Path(file).read_bytes()).hexdigest() == digest for file, digest in files.items())
        beside = (other for file in files for other in Path(file).parent.iterdir() if other.suffix in _SOURCES)
        return same and all(other.stat().st_mtime <= FILE.stat().st_mtime for other in beside)
    except OSError:
        return False


def is_sound(request: CheckRequest) -> bool:
    """Whether each word has the type that the command line would give it."""
    kinds = {option.name: option.kind for option in OPTIONS}
    words = (request.target, request.family or "", request.reference or "")
    return (
        all(isinstance(word, str) for word in words)
        and isinstance(request.options, dict)
        and all(isinstance(word, kinds.get(name, ())) for name, word in request.options.items())
    )
