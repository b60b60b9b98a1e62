"""What a kernel raises in the interpreter is told with its own line and words."""

import pytest
import torch

from tests.cli.command import SMALL, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the compiler says these things in its own way")

TARGET = """
import triton
import triton.language as tl

@triton.jit
def narrow_kernel(x, WIDTH: tl.constexpr):
    tl.static_assert(WIDTH <= 16)
    tl.store(x, 0.0)

@triton.jit
def mixed_kernel(x, WIDTH: tl.constexpr):
    tile = tl.zeros([WIDTH, WIDTH], tl.float32)
    tl.store(x, tl.sum(tl.dot(tile, tile.to(tl.float16))))

def narrow(q, k, v, do, scale):
    narrow_kernel[(1,)](q, WIDTH=32)

def mixed(q, k, v, do, scale):
    mixed_kernel[(1,)](q, WIDTH=32)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("narrow", "(contiguous): raising.py:7: tl.static_assert(WIDTH <= 16)"),
        ("mixed", "(contiguous): raising.py:13: Both operands must be same dtype. Got fp32 and fp16"),
    ],
)
def test_the_line_of_a_kernel_that_raised_is_told_with_its_words(folder, name, words):
    (folder / "raising.py").write_text(TARGET, encoding="utf-8")
    ran = run(f"check raising.py:{name} {SMALL}")
    assert ran.code == 3
    assert words in ran.err
