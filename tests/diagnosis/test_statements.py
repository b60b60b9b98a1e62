"""The statements around a line: loops, ranges, masks, addresses and launches."""

from __future__ import annotations

from pathlib import Path

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


def test_masks_and_launches_are_followed_through_calls(tmp_path: Path) -> None:
    file = str(tmp_path / "calls.py")
    Path(file).write_text(CALLS)
    assert list(source(file).masks(13)) == [12, 4, 3]
    assert list(source(file).launches_with(17)) == [18]
    assert list(source(file).grids("outer")) == [18, 16]


def test_the_statements_around_a_line(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(SOURCE)
    assert list(source(str(file)).masks(8)) == [7, 6]
    assert list(source(str(file)).address(8)) == [4, 3]
    assert source(str(file)).loops(10) == [9, 5]
    assert not list(source(str(tmp_path / "none.py")).masks(3))
    of_terms = tmp_path / "of_terms.py"
    of_terms.write_text(
        "def kernel(x, n):\n    low = x < n\n    seen = low & (x > 0)\n    y = tl.where(seen, x, n)\n"
    )
    assert list(source(str(of_terms)).masks(4)) == [3, 2]
