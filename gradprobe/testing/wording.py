"""Turns case options given as Python values into the words of a command line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from ..commands.configuration.environment import expected, word_of
from ..inputs.options import OPTIONS

_BY_NAME = {option.name: option for option in OPTIONS}


def words_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a command line for options such as `heads=4, window=(16, 0), dtype=torch.float16`.

    None stands for an option that is not given. The words are judged with those of the command line, not here.

    Raises:
        TypeError: an option does not exist, or a value has another type than the option takes.
    """
    __tracebackhide__ = True
    words = {}
    for name, value in values.items():
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.5)
            way = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(_BY_NAME)}"
            raise TypeError(f"gradprobe knows no option {name!r}; {way}")
        if value is None:
            continue
        words[name] = word_of(_BY_NAME[name], _plain(value))
        if words[name] is None:
            raise TypeError(f"gradprobe's option {name} must be {expected(_BY_NAME[name])}, got {value!r}")
    return words


def _plain(value: Any) -> Any:
    """A value in a form of TOML: for a path, torch's dtype or device, an array, a tuple, or a dict as NAME=VALUE."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__name__ in ("dtype", "device") and type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return [f"{name}={place}" for name, place in value.items()]
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, tuple) else value
