"""Kernels that would end a process or never end, and files that are none: each has an answer with its line."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from gradprobe.cuda import load
from gradprobe.model.failures import KernelStopped, TargetFailure
from gradprobe.processes.child import WHERE
from tests.cli.command import run_process
from tests.cuda.written import loaded
from tests.reported.conftest import SMALL

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
__global__ void divides(int* out, int n) { out[0] = out[1] / n; }  // divides
__device__ int deeper(volatile int* out, int n) {
    volatile int room[64];
    room[n % 64] = out[0];
    return deeper(out, n + 1) + room[3];  // deeper
}
__global__ void recurses(int* out, int n) { out[0] = deeper(out, n); }
__global__ void aborts(int* out, int n) { if (n == 0) abort(); }
__global__ void prints(int* out, int n) { for (int i = 0; i < n; ++i) printf("%d of %d numbers\n", i, n); }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("hostile"), SOURCE)


def stopped(module, kernel: str) -> str:
    with pytest.raises(KernelStopped) as failed:
        module[kernel](1, 2, 0, torch.ones(4, dtype=torch.int32), 0)
    return str(failed.value)


def test_what_a_cpu_ends_a_program_for_is_told_with_thread_and_line(module):
    assert "divides: thread (0, 0, 0) of block (0, 0, 0) divides an integer by 0" in stopped(
        module, "divides"
    )
    assert "`__global__ void divides" in stopped(module, "divides")
    assert "needs more than the 512 KiB of local memory" in stopped(module, "recurses")
    assert "// deeper`" in stopped(module, "recurses") or "room[n % 64]" in stopped(
        module, "recurses"
    )
    assert "aborts: thread (0, 0, 0) of block (0, 0, 0) aborts" in stopped(module, "aborts")
    out = torch.tensor([0, 7, 0, 0], dtype=torch.int32)
    module.divides(1, 1, 0, out, 2)  # and the process lives on
    assert out[0] == 3


def test_a_launch_prints_no_more_than_a_gpu_keeps(module, capfd):
    module.prints(1, 1, 0, torch.ones(4, dtype=torch.int32), 100_000)
    module.prints(1, 1, 0, torch.ones(4, dtype=torch.int32), 1)
    printed = capfd.readouterr().out
    assert 1 << 20 < len(printed) < (1 << 20) + 200
    assert "this launch printed more than 1 MiB" in printed
    assert printed.endswith("0 of 1 numbers\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "__global__ void k(float* x) {\n    x[0] = 1.0f;\n",
            "my.cu:1: a brace is opened here and not closed",
        ),
        (
            "__global__ void k(float* x) {\n    throw 3;\n}\n",
            "my.cu:2: exception handling disabled",
        ),
    ],
)
def test_what_no_gpu_can_compile_is_told_with_its_line(tmp_path, text, words):
    with pytest.raises(TargetFailure) as failed:
        loaded(tmp_path, text).k(1, 1, 0, torch.zeros(1))
    assert words in str(failed.value)


def test_comments_in_another_encoding_do_not_matter(tmp_path):
    (tmp_path / "my.cu").write_bytes(
        b"// caf\xe9 \xb5\n__global__ void k(float* x) { x[0] = 2.0f; }  // \xff\n"
    )
    out = torch.zeros(1)
    load(tmp_path / "my.cu").k(1, 1, 0, out)
    assert out[0] == 2


@pytest.mark.parametrize(
    "body", ["while (n)\n        n = n * 3 | 1;", "while (n)\n        __syncthreads();"]
)
def test_a_signal_stops_a_kernel_that_does_not_end(tmp_path, body):
    kernel = loaded(
        tmp_path, f"__global__ void spin(int* out, int n) {{\n    {body}\n    out[0] = n;\n}}\n"
    ).spin
    out = torch.ones(1, dtype=torch.int32)
    kernel(1, 1, 0, out, 0)
    threading.Timer(0.2, os.kill, (os.getpid(), WHERE)).start()
    with pytest.raises(
        KernelStopped,
        match=r"spin: thread \(0, 0, 0\) of block \(0, 0, 0\) has not ended at my.cu:[23] ",
    ):
        kernel(1, 1, 0, out, 1)
    assert signal.getsignal(WHERE) == signal.SIG_DFL


@pytest.mark.nightly
def test_a_kernel_that_does_not_end_is_told_at_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.cu").write_text(
        "__global__ void spin(float* delta, int n) {\n    int i = n;\n    while (n)\n        n = n * 3 | 1;  // here\n"
        "    delta[0] = i + n;\n}\n"
    )
    (tmp_path / "spins.py").write_text(
        "import torch, gradprobe.cuda\nK = gradprobe.cuda.load('my.cu')\n\n\ndef back(q, k, v, do):\n"
        "    delta = torch.zeros(q.shape[:-1])\n    K.spin(1, 1, 0, delta, 1)\n    return {'delta': delta}\n"
    )
    load(tmp_path / "my.cu").spin(
        1, 1, 0, torch.zeros(1), 0
    )  # compiled, so that the limit is the kernel's alone
    ran = run_process(f"check spins.py:back {SMALL} --runs contiguous --timeout 6")
    assert ran.code == 3
    assert (
        "last at my.cu:4 in spin: n = n * 3 | 1;  // here" in ran.err
        or "last at my.cu:3 in spin" in ran.err
    )
