"""Case options as Python values -> the words that the command line would hold for them."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from .options import OPTIONS, Option

_BY_NAME = {option.name: option for option in OPTIONS}


def words_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line would hold for options such as `heads=4, window=(16, 0), dtype=torch.float16`.

    None means: not given. What the words may be is judged where those of the command line are.

    Raises:
        TypeError: an option that does not exist, or a value of another type than it takes.
    """
    __tracebackhide__ = True
    for name in values:
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.5)
            way = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(_BY_NAME)}"
            raise TypeError(f"gradprobe knows no option {name!r}; {way}")
    return {name: _word(_BY_NAME[name], value) for name, value in values.items() if value is not None}


def _word(option: Option, value: Any) -> Any:
    __tracebackhide__ = True
    read, form = _KINDS[option.kind]
    word = read(value)
    if word is None:
        raise TypeError(f"gradprobe's option {option.name} takes {form}, got {value!r}")
    return word


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def _list(value: Any) -> list[str] | None:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):  # {"do": "blhd"}
        value = [f"{name}={place}" for name, place in value.items()]
    words = list(value) if isinstance(value, Iterable) else []
    return words if words and all(isinstance(word, str) for word in words) else None


def _text(value: Any) -> str | None:
    """A word, a path, torch's dtype or device, or numbers, one or several."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if type(value).__name__ in ("dtype", "device") and type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    value = value.tolist() if hasattr(value, "tolist") else value
    numbers = list(value) if isinstance(value, Iterable) else [value]
    return ",".join(map(repr, numbers)) if numbers and all(_number(one) is not None for one in numbers) else None


_KINDS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    bool: (_flag, "True or False"),
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    list: (_list, "words"),
    str: (_text, "a word, or numbers"),
}
