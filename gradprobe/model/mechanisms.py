"""Mechanisms: what finds, places, names or tries, each behind a door. For benchmarks/ledger.py, which weighs them:

`GRADPROBE_WITHOUT=lint,faults/index` shuts doors; `GRADPROBE_MECHANISMS=FILE` keeps what each took, and if it spoke.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_OFF = frozenset(filter(None, os.environ.get("GRADPROBE_WITHOUT", "").split(",")))
_RECORD = os.environ.get("GRADPROBE_MECHANISMS", "")
Result = TypeVar("Result")


def is_on(name: str) -> bool:
    """Whether a mechanism may work; of `edits/siblings` also whether `edits` may."""
    return not _OFF or _OFF.isdisjoint((name, name.partition("/")[0]))


def note(name: str, seconds: float, *, spoke: bool = False) -> None:
    if _RECORD:  # of a fork too: a line is written at once and whole
        with open(_RECORD, "a", encoding="utf-8") as record:
            record.write(f"{name} {seconds:.4f} {int(spoke)}\n")


def door(
    name: str, nothing: Callable[..., Any] = lambda *args: None
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Shut, a function gives `nothing(...)`; it speaks where it gives another object."""

    def of(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def opened(*args: Any, **kwargs: Any) -> Result:
            if not is_on(name):
                return nothing(*args)  # type: ignore[no-any-return]
            start, result = time.process_time(), function(*args, **kwargs)
            if _RECORD:
                note(name, time.process_time() - start, spoke=result is not nothing(*args))
            return result

        return opened

    return of


def gathered(name: str, work: Callable[..., Iterable[Result]], *args: Any) -> list[Result]:
    if not is_on(name):
        return []
    start, found = time.process_time(), list(work(*args))
    note(name, time.process_time() - start, spoke=bool(found))
    return found
