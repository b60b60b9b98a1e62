"""Saved reports, as `--json` wrote them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..model.documents import Reports, load_several
from ..model.failures import Failure, UsageFailure, did_you_mean


def read(file: str) -> Reports:
    """The reports of a file. Raises UsageFailure: it cannot be read, or holds none."""
    try:
        return load_several(Path(file).read_bytes())
    except OSError as error:
        close = did_you_mean(file, map(str, Path(file).parent.glob("*.json")), "")
        way_out = close or "gradprobe check --json FILE writes one"
        raise UsageFailure(f"{file}: cannot be read, {error.strerror}", way_out) from error
    except UsageFailure as failure:
        raise UsageFailure(f"{file}: {failure}", failure.way_out) from failure


_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError)


@contextlib.contextmanager
def damage_told(files: str) -> Iterator[None]:
    """Shows saved reports; one whose parts have their types and do not fit together raises UsageFailure."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, Failure):
            raise
        why = f"its parts do not fit together ({type(error).__name__}: {error})"
        way_out = "write it anew; with --traceback it says where"
        raise UsageFailure(f"{files}: damaged, {why}", way_out) from error
