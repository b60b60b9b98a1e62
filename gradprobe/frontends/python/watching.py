"""Watching: what a reference's expressions and variables held in one call, in the order in which they had it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ...inputs.memory import Array
from . import plain_function
from .expressions import Expression, telling

# An expression in a loop is looked at so often, and the last time.
_MOST, _LARGEST = 48, 1 << 20


@dataclass(frozen=True)
class Value:
    """What an expression, or a variable after a statement, held."""

    at: Expression
    array: Array
    dtype: str


def _as_array(value: Any) -> Array | None:
    """The floating numbers of a tensor or an array in float64; None of anything else."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or value.is_meta or value.layout is not torch.strided:
            return None
        return value.detach().cpu().double().numpy()
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None


def module_of(function: Callable[..., Any]) -> ModuleType | None:
    """The module of a function; None where it has none, or no file of Python."""
    module = sys.modules.get(plain_function(function).__module__ or "")
    return module if module is not None and (getattr(module, "__file__", None) or "").endswith(".py") else None


def text_of_file(function: Callable[..., Any]) -> str:
    """The text of a function's file; "" where it has no file of Python."""
    module = module_of(function)
    return "" if module is None else Path(module.__file__ or "").read_text(encoding="utf-8")


@contextmanager
def watched(function: Callable[..., Any]) -> Iterator[Mapping[tuple[int, int], Value]]:
    """While open, a call of the function is watched, with the functions of its file that it calls.

    Its values are kept by expression and how often it was looked at, in the order in which they came.
    """
    values: dict[tuple[int, int], Value] = {}
    counts: Counter[int] = Counter()

    def record(at: Expression, value: Any) -> None:
        array = _as_array(value)
        if array is None or array.ndim == 0 or array.size > _LARGEST:
            return
        counts[at.number] += 1
        key = at.number, min(counts[at.number], _MOST)
        values.pop(key, None)  # the latest in the place of the one before it
        values[key] = Value(at, array.copy(), str(value.dtype).removeprefix("torch."))

    module = module_of(function)
    if module is None:
        yield values
        return
    with telling(module, text_of_file(function), record):
        yield values
