"""PREC: something is rounded to fewer bits before it is used."""

from tests.faults.plain import making, named, reading, told
from tests.sampling import sampled

ROUNDED = {
    "precision/P": making("P", lambda t: t.bfloat16().float()),
    "precision/dS": making("dS", lambda t: t.half().float()),
    "precision/do": reading("do", lambda t: t.bfloat16()),
    "precision/dQ": making("dQ", lambda t: t.bfloat16().float()),
}


@sampled("fault", ROUNDED, push=["precision/dS", "precision/do"])
def test_what_is_rounded_is_named(fault):
    assert named(told(ROUNDED[fault], causal=True)) == fault
