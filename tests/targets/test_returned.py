import pytest

from gradprobe.targets.bind import by_name

A, B, C = "abc"


def launched():
    return A, B, C


def in_another_order():
    dq, dk, dv, softmax_d = A, B, C, "d"

    def inner():
        return dq, dk

    return dv.to(dq), dk, softmax_d, dq


def by_leaves(q, k, v):
    return k.grad, q.grad, v.grad


def by_another_function():
    return launched()


def twice():
    dq = A
    return dq, dq, B


@pytest.mark.parametrize(
    ("function", "results", "names"),
    [
        (launched, (A, B, C), {"dQ": A, "dK": B, "dV": C}),
        (by_another_function, (A, B, C, None, None), {"dQ": A, "dK": B, "dV": C}),
        (twice, (A, B, C), {"dQ": A, "dK": B, "dV": C}),
        (by_leaves, (B, A, C), {"dK": B, "dQ": A, "dV": C}),
        (in_another_order, (C, B, "d", A), {"dV": C, "dK": B, "dQ": A}),
        (by_another_function, (A, B, C, "d"), None),
        (by_another_function, (None, A, B, C), None),
        (len, (A, B, C), {"dQ": A, "dK": B, "dV": C}),
    ],
)
def test_which_result_is_which(function, results, names):
    found = by_name(function, results)
    assert (found and found[0]) == names
