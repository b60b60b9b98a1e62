"""Options from the environment: GRADPROBE_HEADS for --heads, and so on for each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..failures import UsageFailure
from ..options import OPTIONS
from .words import from_environment, seconds


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
