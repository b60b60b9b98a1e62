"""The atomics that add into a target's results: by the storages that its kernels were given, else by names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..model.run import Line
from ..runtime.run import Outcome
from .given import pointers_to


def atomics_into(outcome: Outcome, names: Iterable[str]) -> dict[str, tuple[Line, ...]]:
    """By intermediate, the lines of the launched kernels that add into it by atomics."""
    return {name: (*_of_triton(outcome, name), *_of_cuda(outcome, name)) for name in names}


def _of_triton(outcome: Outcome, name: str) -> tuple[Line, ...]:
    found: dict[Line, None] = {}
    for one in pointers_to(outcome, name):
        from ..source import additions

        try:
            found |= dict.fromkeys(additions.atomics_into(one.kernel, {one.parameter}))
        except (OSError, SyntaxError):  # its source is not there
            continue
    return tuple(found)


def _of_cuda(outcome: Outcome, name: str) -> tuple[Line, ...]:
    files = dict.fromkeys(source.file for source in outcome.kernels if outcome.cuda and not source.file.endswith(".py"))
    if not files:
        return ()
    from ..source.additions import cuda_atomics

    of_files = [(file, Path(file).read_text(errors="replace")) for file in files if Path(file).is_file()]
    return tuple(line for file, text in of_files for of, line in cuda_atomics(file, text) if of == name)
