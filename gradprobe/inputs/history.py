"""The last check in this folder, so that `diff` can repeat it, or need not."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.failures import UsageFailure
from ..model.writing import replace_file
from .options import OPTIONS, command_line
from .versions import installed_versions

if TYPE_CHECKING:
    from ..model.report import Report

FOLDER = Path(".gradprobe")
FILE = FOLDER / "last.json"
# Bytes up to which a file is hashed: inputs may take gigabytes.
_HASHED = 1 << 26


@dataclass(frozen=True)
class CheckRequest:
    """A target and its options, as words of the command line."""

    target: str
    family: str | None
    reference: str | None
    options: Mapping[str, Any]

    def command(self, name: str = "check", **more: Any) -> str:
        more = {"family": self.family, "reference": self.reference, **more}
        return command_line(name, self.target, self.options, more)


def make_folder() -> None:
    """Git is told to ignore it. Raises OSError."""
    if FOLDER.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link", str(FOLDER))
    FOLDER.mkdir(exist_ok=True)
    replace_file(FOLDER / ".gitignore", "*\n")


def save(request: CheckRequest, report: Report | None = None) -> bool:
    if "GRADPROBE_MUTANT" in os.environ:  # of a copy with a fault in it
        return False
    from ..model.documents import document_of

    kept = {"report": document_of(report)} if report is not None else {}
    with contextlib.suppress(OSError):
        make_folder()
        replace_file(FILE, json.dumps(asdict(request) | kept, indent=2))
        return True
    return False


def load() -> CheckRequest | None:
    """None where none was made here. Raises UsageFailure: it is damaged."""
    return _last()[0]


def kept_report(request: CheckRequest) -> Report | None:
    """The last report, of this very check and unchanged files alone. Raises UsageFailure."""
    last, report = _last()
    return report if last == request and report and not changed_since(report) else None


def last_report() -> Report | None:
    """Whatever its files hold now. Raises UsageFailure: it is damaged."""
    return _last()[1]


def _last() -> tuple[CheckRequest | None, Report | None]:
    from ..model.documents import parsed, report_from

    try:
        document = parsed(FILE.read_bytes())
        kept = document.pop("report", None)
        request = CheckRequest(**document)
        if not is_sound(request):
            raise UsageFailure("a word of the check has another type than its option takes")
        return request, None if kept is None else report_from(kept)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except OSError as error:
        raise UsageFailure(f"{FILE}: cannot be read, {error.strerror}") from error
    except (TypeError, UsageFailure) as error:
        why = "it names no check of this version" if isinstance(error, TypeError) else error
        raise UsageFailure(
            f"{FILE} is damaged: {why}", "gradprobe check writes it anew"
        ) from error


def changed_since(report: Report) -> list[str]:
    if not report.sources:
        return ["what the check was made of"]
    files = [file for file, digest in report.sources.items() if digest_of(file) != digest]
    before = report.environment
    now = installed_versions().items()
    return files + [name for name, version in now if before.get(name, version) != version]


def digest_of(file: str) -> str:
    """Of a large file, its size and when it was written; "" where it is missing."""
    try:
        status = os.stat(file)
        if status.st_size > _HASHED:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def is_sound(request: CheckRequest) -> bool:
    kinds = {option.name: option.kind for option in OPTIONS}
    words = (request.target, request.family or "", request.reference or "")
    if not (all(isinstance(word, str) for word in words) and isinstance(request.options, dict)):
        return False
    return all(isinstance(word, kinds.get(name, ())) for name, word in request.options.items())
