"""Which launched kernels get the memory of a target's results, and the atomics by which they add into it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ..model.layout_run import Line
from ..runtime.run import Outcome


def atomics_into(outcome: Outcome, names: Iterable[str]) -> dict[str, tuple[Line, ...]]:
    """By intermediate, the lines of the launched kernels that add into it by atomics."""
    from ..source import additions

    found: dict[str, dict[Line, None]] = {name: {} for name in names}
    for name, lines in found.items():
        for kernel, parameter in _pointers_to(outcome, name):
            with contextlib.suppress(OSError, SyntaxError):  # its source is not there
                lines.update(dict.fromkeys(additions.atomics_into(kernel, {parameter})))
    files = dict.fromkeys(source.file for source in outcome.kernels if not source.file.endswith(".py"))
    for file in (file for file in files if Path(file).is_file()):
        for name, line in additions.cuda_atomics(file, Path(file).read_text(errors="replace")):
            found.get(name, {})[line] = None
    return {name: tuple(lines) for name, lines in found.items()}


def _pointers_to(outcome: Outcome, name: str) -> list[tuple[Any, str]]:
    """The kernels of Triton that were launched with a pointer to an intermediate, and its parameter there."""
    if not outcome.calls:  # else Triton is loaded
        return []
    from ..source.additions import named_after

    homes = {address for address, of in outcome.storages.items() if of.lower() == name.lower()}
    pointers = [(call.kernel, *pointer) for call in outcome.calls for pointer in call.pointers]
    named = [(kernel, parameter) for kernel, parameter, _ in pointers if named_after(parameter) == name]
    # A storage may have been another tensor's before: names decide where there are some.
    there = named or [(kernel, parameter) for kernel, parameter, storage in pointers if storage in homes]
    return list(dict.fromkeys(there))


def makes_together(outcome: Outcome, names: Collection[str]) -> bool:
    """Whether one kernel was launched with pointers to all of these intermediates."""
    kernels = [{id(kernel) for kernel, _ in _pointers_to(outcome, name)} for name in names]
    return bool(set.intersection(*kernels))
