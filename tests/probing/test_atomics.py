"""Which kernels were given the memory of results."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradprobe.frontends.triton.launches import KernelCall, PointerArgument
from gradprobe.probing.runs import makes_together


@pytest.mark.parametrize(
    ("pointers", "together"),
    [
        ([("backward", "dQ", 1), ("backward", "dK", 2)], True),
        ([("dq", "dQ", 1), ("dkdv", "dK", 2)], False),
        ([("backward", "a", 1), ("backward", "b", 2)], True),  # by their storages
        ([("first", "a", 1), ("second", "b", 2)], False),
        ([], False),
    ],
)
def test_one_kernel_makes_two_results_where_it_was_given_both(pointers, together):
    kernels = {name: object() for name, _, _ in pointers}
    calls = [
        KernelCall(kernels[name], {parameter: PointerArgument(None, storage)})
        for name, parameter, storage in pointers
    ]
    outcome = SimpleNamespace(calls=calls, storages={1: "dQ", 2: "dK"})
    assert makes_together(outcome, "dQ", "dK") is together
