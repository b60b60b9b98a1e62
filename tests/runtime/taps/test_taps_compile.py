"""Kernels with taps compile for a GPU, and say there what they say in the interpreter where a tap does not fit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=["bf16", pytest.param("fp32", marks=pytest.mark.nightly)])
def printed(request, tmp_path_factory):
    """What the script prints, by line."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    script = ROOT / "tests" / "runtime" / "taps" / "compile_for_hopper.py"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", script, request.param],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()


def test_kernels_with_taps_compile_for_hopper_and_store_more_than_without(printed):
    compiled = [line.split() for line in printed if not line.startswith("REFUSED")]
    assert [name for name, *_ in compiled] == [
        "lazy_preprocess_kernel", "lazy_dq_kernel", "lazy_dkdv_kernel",
        "fused_backward_kernel", "decorated_dq_kernel",
    ]  # fmt: skip
    assert all(int(tapped) > int(plain) for _, tapped, plain, _ in compiled)


def test_a_tap_that_does_not_fit_is_told_by_the_compiler_in_the_same_words(printed):
    refused = [line for line in printed if line.startswith("REFUSED")]
    assert len(refused) == 4
    for line, words in zip(
        refused,
        (
            "axis 1 of 'ds' is 16 long, but the block that indexes it 32",
            "'ds' has 2 axes, but its index has 1 blocks",
            "the index 'valid' is a tile of several axes",
            "'offs_m' has no value in half_named_kernel at some place where 'p' is computed",
        ),
        strict=True,
    ):
        assert words in line
