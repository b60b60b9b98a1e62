"""Tensor descriptors, made in a kernel or by its wrapper: their accesses are watched, and their strides tried."""

import pytest

from tests.cli.command import checked

pytestmark = pytest.mark.usefixtures("without_causes")

WRITTEN = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def of_rows(do, o, delta, rows, of_do, of_o, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    given = tl.make_tensor_descriptor(do, [rows, SIZE], [of_do, 1], [BLOCK, SIZE])
    output = tl.make_tensor_descriptor(o, [rows, SIZE], [of_o, 1], [BLOCK, SIZE])
    sums = tl.sum(given.load([start, 0]) * output.load([start, 0]), 1)
    found = tl.make_tensor_descriptor(delta, [rows], [1], [BLOCK])
    found.store([start], sums)

@triton.jit
def of_descriptors(do, o, delta, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    sums = tl.sum(do.load([start, 0]) * o.load([start, 0]), 1)
    delta.store([start], sums)

def with_rows(tensor):
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

def device(q, k, v, do, *, o):
    do, o = with_rows(do), with_rows(o)
    delta = do.new_empty(do.shape[:3])
    for head in range(do.shape[1]):
        given, output, rows = do[0, head], o[0, head], do.shape[2]

        grid = (triton.cdiv(do.shape[2], 32),)
        of_rows[grid](given, output, delta[0, head], rows, given.stride(0), output.stride(0), do.shape[3], 32)
    return {"delta": delta}

def host(q, k, v, do, *, o):
    do, o = with_rows(do), with_rows(o)
    delta = do.new_empty(do.shape[:3])
    for head in range(do.shape[1]):
        shape = [do.shape[2], do.shape[3]]
        given = [TensorDescriptor(x[0, head], shape, x[0, head].stride(), [32, shape[1]]) for x in (do, o)]
        found = TensorDescriptor(delta[0, head], shape[:1], [1], [32])
        of_descriptors[(triton.cdiv(do.shape[2], 32),)](*given, found, 32)
    return {"delta": delta}

"""
SMALL = "--batch 1 --heads 2 --seqlen 40 --head-dim 16"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "described.py").write_text(WRITTEN)


@pytest.mark.parametrize("way", ["device", "host"])
def test_a_right_kernel_matches_where_rows_are_aligned_and_refuses_where_they_are_not(way):
    layouts = "--runs contiguous --runs distinct-unit --runs offset"
    code, report = checked(f"described.py:{way} {SMALL} {layouts}")
    assert (code, report["verdict"]) == (0, "match")
    assert [one["verdict"] for one in report["runs"]][:2] == ["match", "match"]
    assert "base must be 16-byte aligned" in report["runs"][2]["skipped"]
