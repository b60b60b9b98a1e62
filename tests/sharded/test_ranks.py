import textwrap

import pytest

from gradprobe.model.failures import RanksFailure
from tests.cli.command import run
from tests.sharded.rings import EXAMPLE, checked, failure_of

_BAD = """
    import os, signal, sys
    import torch
    import torch.distributed as dist

    def _sum(q):
        total = q.sum()
        dist.all_reduce(total)
        return {"O": q * 0 + total, "dQ": q, "dK": q, "dV": q}

    def dies(q, k, v, do, *, rank):
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return _sum(q)

    def raises(q, k, v, do, *, rank):
        if rank == 1:
            raise IndexError("no such block")
        return _sum(q)

    def hangs(q, k, v, do, *, rank):
        if rank == 3:
            dist.recv(q.clone(), 0)
        return _sum(q)

    def of_all_keys(q, k, v, do, *, rank):
        return _sum(q) | {"P": q @ k.mT, "dS": q @ k.mT}

"""


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(textwrap.dedent(_BAD))
    return path


def test_a_ring_of_four_processes_is_right():
    report = checked(f"{EXAMPLE}:ring", causal=True, runs=["distinct"])
    assert (report.verdict, report.case.ranks) == ("match", 4)


@pytest.mark.nightly
@pytest.mark.usefixtures("real_processes")  # a fork of the zygote has one of its own below it
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("dies", ["rank 2 died: killed by SIGSEGV (segmentation fault), last at ", "os.kill(os.getpid(), signal.SIG"]),
        ("raises", ["rank 1 raised IndexError (contiguous): no such block", "ranks 0, 2-3 wait at"]),
        ("hangs", ["ranks 0-2 wait at", "rank 3 waits at", "dist.recv(q.clone(), 0)"]),
    ],
)  # fmt: skip
def test_what_keeps_ranks_from_an_end_is_told(bad, function, words):
    failure = failure_of(f"{bad}:{function}")
    assert isinstance(failure, RanksFailure) or function == "dies"
    assert [one for one in words if one not in str(failure)] == []
    assert function != "dies" or "rank 1 raised" not in str(failure)


def test_ranks_that_return_matrices_of_all_keys_are_told_to_leave_them_out(bad):
    failure = failure_of(f"{bad}:of_all_keys")
    assert str(failure) == "ranks return P and dS, of which none holds all keys"
    assert failure.way_out == "leave out P and dS"


def test_under_torchrun_it_says_how_ranks_are_started():
    ran = run(f"check {EXAMPLE}:ring", TORCHELASTIC_RUN_ID="none")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("\n  gradprobe check TARGET --ranks N\n")
