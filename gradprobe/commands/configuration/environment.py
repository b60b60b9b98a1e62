"""Values of options from TOML and from the environment, as words of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...inputs.options import OPTIONS, Option, parse
from ...model.failures import UsageFailure

# Seconds of a year: what the system's clocks take without overflow.
_LONGEST = 31_536_000.0
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", list: "an array of strings"}
_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def from_toml(option: Option, value: Any, where: str) -> Any:
    """What `CheckRequest.options` holds for a TOML value of the option's type, or for the command line's string.

    Args:
        where: the key and its table, for messages.

    Raises:
        UsageFailure: it has another type, or is invalid.
    """
    word = word_of(option, value)
    if word is None:
        raise UsageFailure(f"{where} must be {expected(option)}, got {value_in_words(value)}")
    return _parsed(option, word, where)


def from_environment(option: Option, text: str, variable: str) -> Any:
    """The same of an environment variable; several words of one are separated by blanks."""
    value: Any = _TRUTH.get(text.strip().lower()) if option.kind is bool else text
    value = text.split() if option.kind is list else value
    word = word_of(option, value)
    if word is None:
        kind = "1 or 0" if option.kind is bool else expected(option)
        raise UsageFailure(f"the environment variable {variable} must be {kind}, got {text!r}")
    return _parsed(option, word, f"the environment variable {variable}")


def seconds(value: Any, where: str) -> float:
    """A timeout. Raises UsageFailure where it is not a number of seconds from 0 to a year."""
    if not is_number(value) or not 0 < value <= _LONGEST:
        raise UsageFailure(f"{where} must be seconds above 0, and at most {_LONGEST:.0f}, got {value_in_words(value)}")
    return float(value)


def value_in_words(value: Any) -> str:
    """A value of TOML in a message: its type and itself."""
    kinds = {bool: "the boolean", int: "the number", float: "the number", str: "the string", list: "the array"}
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, Mapping):
        return "a table"
    return f"{kinds.get(type(value), type(value).__name__)} {shown}"


def is_number(value: Any) -> bool:
    """Whether it is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def expected(option: Option) -> str:
    """What an option takes, in words."""
    return "an array of numbers" if option.numbers else _KINDS[option.kind]


def word_of(option: Option, value: Any) -> Any:
    """What the command line would hold for a plain value; None where it has no type that the option takes."""
    if option.kind is bool:
        return value if isinstance(value, bool) else None
    if option.kind is list:
        items = [value] if isinstance(value, str) else value
        return items if isinstance(items, list) and all(isinstance(item, str) for item in items) else None
    if option.numbers and not isinstance(value, str):
        items = value if isinstance(value, list) else [value]
        return ",".join(map(str, items)) if items and all(is_number(item) for item in items) else None
    if option.kind is str:
        return value if isinstance(value, str) else None
    return _number(option.kind, value)


def _number(kind: Any, value: Any) -> Any:
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            return None
    fits = is_number(value) and (kind is float or isinstance(value, int))
    return kind(value) if fits else None


def _parsed(option: Option, word: Any, where: str) -> Any:
    """The word, once the option's own form takes it."""
    try:
        parse({option.name: word})
    except UsageFailure as refused:
        raise UsageFailure(f"{where}: {refused}", refused.way_out) from None
    return word


def variable_of(name: str) -> str:
    """The environment variable of an option, by the option's name."""
    return f"GRADPROBE_{name.upper()}"


def options_of(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The case options that the environment gives, as words of the command line. An empty variable gives none.

    Raises:
        UsageFailure: a variable's value is invalid for its option.
    """
    given = ((option, environment.get(variable_of(option.name), "")) for option in OPTIONS)
    return {option.name: from_environment(option, text, variable_of(option.name)) for option, text in given if text}


def timeout_of(environment: Mapping[str, str] = os.environ) -> float | None:
    """GRADPROBE_TIMEOUT, in seconds; None where it is not set.

    Raises:
        UsageFailure: it is not a number of seconds.
    """
    text, where = environment.get(variable_of("timeout"), ""), f"the environment variable {variable_of('timeout')}"
    try:
        return seconds(float(text), where) if text else None
    except ValueError:
        raise UsageFailure(f"{where} must be seconds, got {text!r}") from None
