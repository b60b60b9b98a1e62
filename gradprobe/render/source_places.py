"""Places in source, and how their paths are written: relative, or as a URI."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote

from msgspec.structs import replace

from .. import __version__
from ..model.documents import Reports
from ..model.intermediates import is_named_after
from ..model.layout_run import Error
from ..model.memory_finding import MemoryFinding, WarningNote
from ..model.report import CauseLine, Origin, Report


@dataclass(frozen=True)
class Place:
    file: str
    line: int | None
    name: str = ""


def origin_here() -> Origin:
    """On GitHub the checkout is the root."""
    folder = os.path.realpath(os.getcwd())
    checkout = os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or folder)
    root = checkout if os.path.commonpath([checkout, folder]) == checkout else folder
    return Origin(folder=folder, root=root, home=os.path.expanduser("~"), version=__version__)


def with_origin(several: Reports) -> Reports:
    here = several.origin or origin_here()
    own = (replace(report, origin=report.origin or here) for report in several.reports)
    return replace(several, reports=tuple(own), origin=here)


def base_of(part: Report | Reports) -> Base:
    origin = part.origin or origin_here()
    return Base(origin.root, origin.folder, origin.home)


@dataclass(frozen=True)
class Base:
    root: str
    here: str
    home: str = ""

    def short(self, file: str) -> str:
        for folder, prefix in ((self.here, ""), (self.home, "~/")):
            path = PurePosixPath(file)
            if folder and path.is_relative_to(folder):
                return f"{prefix}{path.relative_to(folder)}"
        return file

    def relative(self, file: str) -> str | None:
        """The file from the root; None where it does not lie below."""
        path, root = PurePosixPath(self._whole(file)), os.path.normpath(self.root)
        return str(path.relative_to(root)) if path.is_relative_to(root) else None

    def shorten(self, place: Place) -> str:
        file = self.relative(place.file) or place.file
        return f"{file}:{place.line}" if place.line else file

    def uri(self, file: str) -> tuple[str, bool]:
        """The file as a URI, and whether that is relative to the root."""
        below = self.relative(file)
        # Names of files may hold bytes that are no text, which Python keeps as lone surrogates.
        path = (below or self._whole(file)).encode("utf-8", "surrogatepass")
        return ("" if below else "file://") + quote(path), bool(below)

    def _whole(self, file: str) -> str:
        return os.path.normpath(os.path.join(self.here, file))


def places_of(
    report: Report, intermediate: str | None = None, *, inherits: bool = False
) -> tuple[Place, ...]:
    """Where to look, the best first.

    Args:
        intermediate: a wrong one; None where no kernel may be blamed.
        inherits: whether it only inherits, so that only kernels named after it are accused.
    """
    kernels = [Place(one.file, one.line or None, one.name) for one in report.target.kernels]
    found: list[Place] = []
    if intermediate is not None:
        lines = [where for cause in report.causes for where in cause.where]
        lines.sort(key=lambda where: not is_named_after(where.kernel, intermediate))
        for where in lines:
            if not inherits or is_named_after(where.kernel, intermediate):
                found.append(place_of(where))
        found += [] if inherits else [k for k in kernels if is_named_after(k.name, intermediate)]
    target = report.target
    file, _, function = target.name.rpartition(":")
    if target.file:
        found.append(Place(target.file, target.line or None, function or file))
    elif file.endswith(".py"):  # a target that was not found
        found.append(Place(file, None, function))
    return tuple(dict.fromkeys(place for place in (*found, *kernels) if place.file))


def place_of(part: CauseLine | MemoryFinding | Error | WarningNote) -> Place:
    kernel = "" if isinstance(part, (Error, WarningNote)) else part.kernel
    return Place(part.file or "", part.line or None, part.code or kernel)
