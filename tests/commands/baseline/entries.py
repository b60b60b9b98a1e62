"""Entries for tests, with errors as they are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradprobe.commands.baseline import Entry, Errors
from gradprobe.inputs.history import CheckRequest

STEADY = (0.1, 0.101, 0.099, 0.102, 0.098)


def entry(
    target: str = "lazy", errors: dict[str, dict[str, float]] | None = None, **changes: Any
) -> Entry:
    """An entry of five draws; `errors` gives for each layout and intermediate the factor on STEADY."""
    factors = errors or {
        "contiguous": {"dQ": 1.0, "dK": 1.0},
        "distinct": {"dQ": 1.0, "dK": 1.0},
    }
    made = Entry(
        request=CheckRequest(target, None, None, {}),
        seeds=(0, 1, 2, 3, 4),
        ran="triton-interpreter on cpu",
        environment={
            "gradprobe": "0.1.0",
            "torch": "2.13.0",
            "triton": "3.7.1",
            "device": "cpu",
        },
        case={"family": "lazy", "seqlen_q": 72},
        coarser=(),
        errors={
            layout: {name: of(factor) for name, factor in factors_of.items()}
            for layout, factors_of in factors.items()
        },
    )
    return replace(made, **changes)


def of(factor: float) -> Errors:
    figures = tuple(figure * factor for figure in STEADY)
    return Errors(figures, tuple(figure * 4 for figure in figures))
