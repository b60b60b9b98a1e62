"""Saved reports, as `--json` wrote them."""

from __future__ import annotations

from pathlib import Path

from ..model.documents import Reports, load_several
from ..model.failures import UsageFailure, did_you_mean


def read(file: str) -> Reports:
    """The reports of a file.

    Raises:
        UsageFailure: it cannot be read, or holds none.
    """
    try:
        return load_several(Path(file).read_bytes())
    except OSError as error:
        close = did_you_mean(file, (str(one) for one in Path(file).parent.glob("*.json")), "")
        way_out = close or "gradprobe check --json FILE writes one"
        raise UsageFailure(f"{file}: cannot be read, {error.strerror}", way_out) from error
    except UsageFailure as failure:
        raise UsageFailure(f"{file}: {failure}", failure.way_out) from failure
