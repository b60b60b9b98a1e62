"""Many parameters of one test: some on every push, all of them at night."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(names: str, values: Iterable[Any], push: int | Collection[Any]) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize`, of which some values run on every push and the others at night.

    Args:
        push: how many run on every push, spread evenly, or which.
    """
    values = list(values)
    if isinstance(push, int):
        kept = {index * len(values) // push for index in range(push)}
    else:
        kept = {values.index(value) for value in push}
    several = "," in names
    return pytest.mark.parametrize(
        names, [value if number in kept else _at_night(value, several) for number, value in enumerate(values)]
    )


def _at_night(value: Any, several: bool) -> Any:
    if hasattr(value, "marks"):  # a pytest.param
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.nightly])
    return pytest.param(*(value if several else (value,)), marks=pytest.mark.nightly)
