"""The statements around a line: loops, ranges, masks, addresses and launches."""

import pytest

from gradprobe.frontends import source

SOURCE = """
def kernel(p, stride_p, n, heads):
    head = n // heads
    p += head * stride_p
    for start in range(0, n, 16):
        seen = start < n
        seen &= start > 0
        x = tl.where(seen, load(p), 0.0)
        for inner in range(4):
            y = x + inner
"""
CALLS = """
def made(a, b):
    low = a < b
    return low

def inner(x, end, seen):
    for at in range(end):
        x += at

def outer(p, many):
    last = many // 16
    seen = made(last, many)
    inner(tl.where(seen, p, 0), last, seen)

def host(p):
    rest = 8
    out = torch.empty(rest)
    outer[(rest,)](out, rest)
"""
TERMS = (
    "def kernel(x, n):\n    low = x < n\n    seen = low & (x > 0)\n    y = tl.where(seen, x, n)\n"
)


@pytest.mark.parametrize(
    ("text", "asked", "of", "lines"),
    [(SOURCE, "masks", 8, [7, 6]), (SOURCE, "address", 8, [4, 3]), (SOURCE, "loops", 10, [9, 5]),
     (CALLS, "masks", 13, [12, 4, 3]), (CALLS, "launches_with", 17, [18]), (CALLS, "grids", "outer", [18, 16]),
     (TERMS, "masks", 4, [3, 2])],
)  # fmt: skip
def test_the_statements_around_a_line_are_followed_through_calls(
    tmp_path, text, asked, of, lines
):
    (tmp_path / "kernel.py").write_text(text)
    assert list(getattr(source(str(tmp_path / "kernel.py")), asked)(of)) == lines
    assert not list(source(str(tmp_path / "none.py")).masks(3))
