"""Every mix-up of two tensors' strides that lazy and flash can hold is seen in `distinct`, and none in `contiguous`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .stride_mixups import DIMS, TENSORS, mixups, source_of

ROOT = Path(__file__).resolve().parents[2]
# Tensors that no kernel reads or writes both of: the backward of lazy needs no O.
APART = {
    "lazy": {"o do", "o dq", "o dk", "o dv", "dq dk", "dq dv"},
    "flash": {"o dq", "o dk", "o dv", "dq dk", "dq dv"},
}
EXPRESSIBLE = {"lazy": 176, "flash": 184}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter adds in one order, atomics do not")


@pytest.fixture(params=EXPRESSIBLE)
def file(request):
    return request.param


def test_the_224_are_all_there_and_those_of_tensors_that_no_kernel_has_both_of_say_so(file):
    found = mixups(file)
    assert len(found) == len({(mixup.tensor, mixup.other, mixup.dim) for mixup in found}) == 224
    assert len(found) == len(TENSORS) * (len(TENSORS) - 1) * len(DIMS)
    obstacles = {mixup.obstacle for mixup in found if mixup.obstacle}
    pairs = [pair.split() for pair in APART[file]]
    both_ways = [*pairs, *(reversed(pair) for pair in pairs)]
    assert obstacles == {f"no kernel of {file} has both {first} and {second}" for first, second in both_ways}
    assert sum(not mixup.obstacle for mixup in found) == 224 - 8 * len(pairs) == EXPRESSIBLE[file]


def test_each_is_another_program_that_compiles(file):
    source, planted = source_of(file), set()
    for mixup in mixups(file):
        text = mixup.plant(source)
        compile(text, mixup.name, "exec")
        assert (text == source) == bool(mixup.obstacle), mixup.name
        planted.add(text)
    assert len(planted) == EXPRESSIBLE[file] + 1


def test_a_plant_replaces_whole_names_in_bodies_and_leaves_parameters():
    mixup = next(mixup for mixup in mixups("flash") if mixup.name == "dq by q, row")
    assert mixup.kernels == ("flash_dq_kernel",)
    before, after = source_of("flash").splitlines(), mixup.plant(source_of("flash")).splitlines()
    changed = [(old.strip(), new.strip()) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [
        (
            "dq_ptr += b * stride_dqb + h * stride_dqh + first_m * stride_dqm",
            "dq_ptr += b * stride_dqb + h * stride_dqh + first_m * stride_qm",
        ),
        (
            "store_tile(dq_ptr, dq * scale, offs_m, offs_d, stride_dqm, stride_dqd, n_rows, head_dim)",
            "store_tile(dq_ptr, dq * scale, offs_m, offs_d, stride_qm, stride_dqd, n_rows, head_dim)",
        ),
    ]


def test_contiguous_shows_none_and_distinct_shows_all(file, capsys):
    command = [sys.executable, "-m", "tests.faults.stride_runs", file]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=True)
    right, *found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert right["contiguous"] == right["distinct"]
    assert {"delta", "dQ", "dK", "dV", "O", "LSE"} <= right["contiguous"].keys()
    assert [one["name"] for one in found] == [mixup.name for mixup in mixups(file) if not mixup.obstacle]
    assert {one["name"]: one["crash"] for one in found if "crash" in one} == {}
    seen = {
        layout: [one["name"] for one in found if changed(one[layout], right[layout])]
        for layout in ("contiguous", "distinct")
    }
    with capsys.disabled():
        seconds = sum(one["seconds"] for one in found) / len(found)
        print(
            f"\n{file}: {len(found)} of 224 mix-ups of strides expressible; {len(seen['contiguous'])} change a bit in "
            f"contiguous, {len(seen['distinct'])} in distinct; {seconds:.2f} s each"
        )
    assert seen["contiguous"] == []
    assert seen["distinct"] == [one["name"] for one in found]


def changed(digests, right):
    """Whether any result has other bits than those of the right kernels."""
    assert digests.keys() <= right.keys()
    assert {"delta", "dQ", "dK", "dV"} <= digests.keys()
    return any(right[name] != digest for name, digest in digests.items())
