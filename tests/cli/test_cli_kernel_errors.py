"""What a kernel raises in the interpreter is told with its own line and words."""

import json

import pytest
import torch

from tests.cli.command import SMALL, run
from tests.runtime.raising_cases import CASE, KERNELS, TOLD, assert_told

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the compiler says these things in its own way"
)

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
        (
            "mixed",
            "(contiguous): raising.py:13: Both operands must be same dtype. Got fp32 and fp16",
        ),
    ],
)
def test_the_line_of_a_kernel_that_raised_is_told_with_its_words(folder, name, words):
    (folder / "raising.py").write_text(TARGET, encoding="utf-8")
    ran = run(f"check raising.py:{name} {SMALL}")
    assert ran.code == 3
    assert words in ran.err


@pytest.mark.parametrize("name", TOLD)
def test_what_stood_where_it_was_raised_is_told_with_what_of_it_is_the_case_s(folder, name):
    ran = run(f"check {KERNELS}:{name} {CASE}")
    assert ran.code == 3
    assert_told(name, ran.err)


def test_a_variable_that_breaks_whoever_looks_at_it_is_left_alone(folder):
    ran = run(f"check {KERNELS}:odd {CASE} --json out.json")
    assert "raised KeyError (contiguous): <" in ran.err
    assert json.loads((folder / "out.json").read_text())["error"]["details"][1:] == [
        "    return {}[thing]"
    ]


def test_below_a_table_each_kind_of_error_is_told_in_full(folder):
    words = (
        "--batch 1 --heads 2 --seqlen 20 --head-dim 24 --head-dim 20 --workers 1 --shrink-budget 0"
    )
    ran = run(f"sweep {KERNELS}:arange {words}")
    assert ran.code == 3
    assert ran.out.count("offs = tl.arange(0, HEAD)") == 1  # one kind
    assert "      HEAD = 24\n" in ran.out
