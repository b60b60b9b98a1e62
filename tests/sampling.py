"""Many parameters or draws of one test: some on every push, all of them at night.

What is drawn is the same on every push; with `GRADPROBE_TESTS=night` it is drawn anew, and far more often.
"""

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

NIGHT = os.environ.get("GRADPROBE_TESTS") == "night"
# A random.Random whose draws Hypothesis makes, and makes simpler where they fail.
DRAWS = st.randoms(use_true_random=False)


def tries(push: int, night: int = 10_000) -> settings:
    """So many tries on every push, the same each time, and others at night."""
    return settings(
        max_examples=night if NIGHT else push, derandomize=not NIGHT, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def sampled(
    names: str, values: Iterable[Any], push: int | Collection[Any], ids: Callable[[Any], str | None] | None = None
) -> pytest.MarkDecorator:  # fmt: skip
    """`pytest.mark.parametrize`, of which some values run on every push and the others at night.

    Args:
        push: how many run on every push, spread evenly, or which.
        ids: a value as it stands in the name of its test; without it, options are written out.
    """
    values = list(values)
    if isinstance(push, int):
        kept = {index * len(values) // push for index in range(push)}
    else:
        kept = {values.index(value) for value in push}
    several = "," in names
    return pytest.mark.parametrize(
        names, [value if number in kept else _at_night(value, several) for number, value in enumerate(values)],
        ids=ids or _written_out,
    )  # fmt: skip


def _written_out(value: Any) -> str | None:
    """A dict of options in words; None where pytest has a name of its own."""
    if not isinstance(value, dict):
        return None
    return ",".join(f"{name}={value[name]}" for name in value) or "default"


def _at_night(value: Any, several: bool) -> Any:
    if hasattr(value, "marks"):  # a pytest.param
        marks = [*value.marks, pytest.mark.nightly]
        return pytest.param(*value.values, id=value.id, marks=marks)
    return pytest.param(*(value if several else (value,)), marks=pytest.mark.nightly)
