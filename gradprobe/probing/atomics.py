"""Which launched kernels get the memory of a target's results, and the atomics by which they add into it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ..model.layout_run import Line
from ..runtime.run import Outcome


def atomics_into(outcome: Outcome, names: Iterable[str]) -> dict[str, tuple[Line, ...]]:
    """By intermediate, the lines of the launched kernels that add into it by atomics."""
    return {name: (*_of_triton(outcome, name), *_of_cuda(outcome, name)) for name in names}


def _of_triton(outcome: Outcome, name: str) -> tuple[Line, ...]:
    found: dict[Line, None] = {}
    for kernel, parameter in _pointers_to(outcome, name):
        from ..source import additions

        try:
            found |= dict.fromkeys(additions.atomics_into(kernel, {parameter}))
        except (OSError, SyntaxError):  # its source is not there
            continue
    return tuple(found)


def _of_cuda(outcome: Outcome, name: str) -> tuple[Line, ...]:
    files = dict.fromkeys(source.file for source in outcome.kernels if not source.file.endswith(".py"))
    if not files:
        return ()
    from ..source.additions import cuda_atomics

    of_files = [(file, Path(file).read_text(errors="replace")) for file in files if Path(file).is_file()]
    return tuple(line for file, text in of_files for of, line in cuda_atomics(file, text) if of == name)


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
