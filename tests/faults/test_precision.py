"""PREC: something is rounded to fewer bits before it is used."""

import pytest

from tests.faults.plain import making, named, reading, told


@pytest.mark.parametrize(
    ("fault", "planted"),
    [
        ("precision/P", making("P", lambda t: t.bfloat16().float())),
        ("precision/dS", making("dS", lambda t: t.half().float())),
        ("precision/do", reading("do", lambda t: t.bfloat16())),
        ("precision/dQ", making("dQ", lambda t: t.bfloat16().float())),
    ],
    ids=["P", "dS", "do", "dQ"],
)
def test_what_is_rounded_is_named(fault, planted):
    assert named(told(planted, causal=True)) == fault
