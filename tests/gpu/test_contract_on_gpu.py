"""On a GPU: what is read of compiled kernels is what they were written to do, and twice the same."""

import pytest

from gradprobe.commands.contract_request import contract_of
from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.cli.command import run

pytestmark = pytest.mark.gpu

SDPA = ("sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn")


SIZES = {"batch": 1, "heads": 2, "seqlen": 512, "head_dim": 64, "block_m": 64, "block_n": 64}


def read(name, dtype, seed=0, **options):
    target, of = find_target(name), {"pattern": "dyadic", "dtype": dtype, "seed": seed}
    case = resolve({**SIZES, **options, **of, "device": "cuda"}, target.family, takes_bias=False)
    return contract_of(target, case)


def test_a_product_in_tf32_and_one_in_ieee_are_told_apart():
    for dots in ("ieee", "tf32"):
        for name in ("flash", "lazy"):
            assert (name, read(name, "float32", dots=dots).dots) == (name, dots)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_our_kernels_add_up_in_is_read_as_it_is_written(dtype):
    for name in ("flash", "lazy"):
        found = read(name, dtype)
        assert (found.unread, found.sums) == ((), {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [*SDPA, "flash", "lazy"])
def test_a_right_kernel_is_not_accused_on_dyadic_values(name, dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        f"check {name} --dtype {dtype} --pattern dyadic --head-dim 64 --seqlen 300 --no-recover"
    )
    for seed in range(4):
        ran = run(f"{words} --seed {seed}")
        assert ran.code == 0, ran.out
        assert "exact inputs" in " ".join(ran.out.split())
