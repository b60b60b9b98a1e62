"""Ranks on GPUs of one host, one each, which NCCL joins."""

import pytest
import torch

from tests.sharded.rings import EXAMPLE, checked, failure_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
TWO = {"ranks": 2, "device": "cuda", "seqlen": 256, "head_dim": 64, "heads": 4}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", ["ring", "ring_zigzag", "ring_striped"])
def test_a_right_ring_is_right(function, dtype):
    shards = function.removeprefix("ring").removeprefix("_") or "contiguous"
    report = checked(f"{EXAMPLE}:{function}", **TWO, causal=True, dtype=dtype, shards=shards)
    assert report.verdict == "match"


def test_a_fault_is_placed_at_its_step(tmp_path):
    path, seen = tmp_path / "ring.py", "        s = scores(k, step)\n"
    lost = "        s = s - torch.inf if (rank, step) == (1, 1) else s\n"
    path.write_text(EXAMPLE.read_text().replace(seen, seen + lost))
    element = checked(f"{path}:ring", **TWO).first_mismatch
    assert (element.shard, element.rank, element.step) == (1, 1, 1)


def test_a_rank_that_dies_ends_the_other(tmp_path):
    path = tmp_path / "dies.py"
    path.write_text(
        "import os, signal, torch.distributed as dist\n"
        "def f(q, k, v, do, *, rank):\n"
        "    os.kill(os.getpid(), signal.SIGSEGV) if rank else dist.all_reduce(q)\n"
        "    return {'dQ': q, 'dK': k, 'dV': v}\n"
    )
    assert "rank 1 died: killed by SIGSEGV" in str(failure_of(f"{path}:f", **TWO))
