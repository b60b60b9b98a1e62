"""The arguments of a call from Python -> the words of the command line that it stands for."""

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..inputs.history import CheckRequest
from ..inputs.options import OPTIONS, word_of
from ..targets.definitions import with_function
from ..targets.naming import target_word

_BY_NAME = {option.name: option for option in OPTIONS}
Subject = str | Callable[..., Any]  # A target, or a reference: a function, or the word of one


def requested(
    target: Subject, reference: Subject | None, family: str | None, options: Mapping[str, Any],
    others: tuple[str, ...] = (),
) -> CheckRequest:  # fmt: skip
    """What is asked for, in words; "" for a function that has none. `others`: further arguments of the caller.

    Raises:
        TypeError: an option does not exist, or a value has another type than the option takes.
    """
    __tracebackhide__ = True
    words = {}
    for name, value in options.items():
        if name not in _BY_NAME:
            known = [*others, *_BY_NAME]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            way = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise TypeError(f"gradprobe knows no option {name!r}; {way}")
        if value is not None:
            words[name] = word_of(_BY_NAME[name], _plain(value))
            if words[name] is None:
                expected = _BY_NAME[name].expected
                raise TypeError(f"gradprobe's option {name} must be {expected}, got {value!r}")
    named = None if reference is None else word_of_subject(reference)
    return CheckRequest(word_of_subject(target), family, named, words)


def _plain(value: Any) -> Any:
    """A value in a form of TOML; a dict as NAME=VALUE."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__name__ in ("dtype", "device") and type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return [f"{name}={place}" for name, place in value.items()]
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, tuple) else value


def word_of_subject(subject: Subject) -> str:
    """The word by which the command line finds a function; "" where none does. TypeError of others."""
    __tracebackhide__ = True
    if isinstance(subject, str):
        return with_function(subject)
    if not callable(subject):
        raise TypeError(
            f"gradprobe checks a function or the word of one, got {type(subject).__name__}"
        )
    return target_word(subject)
