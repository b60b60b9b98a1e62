"""Asked -> Report: imports what the words need, resolves the case, and probes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .failures import UsageFailure
from .last import Asked
from .options import parse

if TYPE_CHECKING:
    from .verdict import Report


def answer(
    asked: Asked,
    again: str,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Report:
    """The report that a target and its options ask for.

    Args:
        again: the command line that repeats it.
        target: a function to check in place of the one that is asked for by a word.
        reference: likewise.

    Raises:
        Failure: whatever keeps it from being made.
    """
    from .progress import Progress

    start = time.perf_counter()
    given = parse(asked.options)
    if asked.family not in (None, "softmax", "lazy"):
        raise UsageFailure(f"--family must be softmax or lazy, got {asked.family!r}")
    # What a target prints is no data of this command.
    with contextlib.redirect_stdout(sys.stderr), Progress() as tick:
        tick("importing torch and the target", 0.0)
        from .cases.case import resolve
        from .running.backend import choose_threads, make_interpreter_right, prepare_backend

        device = prepare_backend(_device(given))
        from .cases.decided import with_inputs
        from .cases.saved import load
        from .judging.misreading import refuse_misreading
        from .probe import probe
        from .targets.find import find_target

        word = given.get("inputs")
        saved = load(word) if word is not None else None
        found = find_target(asked.target if target is None else target, asked.family)
        judge = (asked.reference or None) if reference is None else reference
        beside = None if judge is None else find_target(judge, asked.family or found.family)
        given = with_inputs(given, saved, str(word), found.family) if saved else given
        packs = found.packs and saved is None
        case = resolve({**given, "device": device}, found.family, takes_bias="bias" in found.takes, packs=packs)
        make_interpreter_right(case)
        choose_threads(case)
        imported = time.perf_counter() - start
        report = probe(case, found, reference=beside, saved=saved, reproduce=again, tick=tick)
        if saved is not None:
            refuse_misreading(report, saved, found)
    seconds = {"import": imported, **report.seconds, "diagnose": 0.0, "total": time.perf_counter() - start}
    return replace(report, seconds=seconds)


def _device(given: dict[str, Any]) -> str:
    from .cases.case import DEVICES

    device = given.get("device", "auto")
    if device not in DEVICES:
        raise UsageFailure(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    return str(device)
