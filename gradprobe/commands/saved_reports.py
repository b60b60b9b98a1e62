"""Saved reports, as `--json` wrote them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..model.contradictions import contradiction
from ..model.documents import Reports, load_several
from ..model.failures import Failure, UsageFailure, did_you_mean


def read(file: str) -> Reports:
    """The reports of a file.

    Raises:
        UsageFailure: it cannot be read, or holds none.
    """
    try:
        several = load_several(Path(file).read_bytes())
        refuse_contradictions(several)
        return several
    except OSError as error:
        close = did_you_mean(file, (str(one) for one in Path(file).parent.glob("*.json")), "")
        way_out = close or "gradprobe check --json FILE writes one"
        raise UsageFailure(f"{file}: cannot be read, {error.strerror}", way_out) from error
    except UsageFailure as failure:
        raise UsageFailure(f"{file}: {failure}", failure.way_out) from failure


def refuse_contradictions(several: Reports) -> None:
    """Does nothing where the parts of each report fit together.

    Raises:
        UsageFailure: some do not; it has their path.
    """
    for report in several.reports:
        if wrong := contradiction(report):
            raise UsageFailure(
                f"the report is damaged: {wrong}", "gradprobe check --json FILE writes one"
            )


@contextlib.contextmanager
def damage_told(files: str) -> Iterator[None]:
    """Shows saved reports; one whose parts have their types and do not fit together is a damaged file.

    Raises:
        UsageFailure: what is shown came to an error that says so.
    """
    try:
        yield
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        if isinstance(error, Failure):
            raise
        words = (
            f"{files}: damaged, its parts do not fit together ({type(error).__name__}: {error})"
        )
        raise UsageFailure(words, "write it anew; with --traceback it says where") from error
