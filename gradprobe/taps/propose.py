"""Taps for variables of the usual names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def propose(kernels: Sequence[Any]) -> list[str]:
    return []
