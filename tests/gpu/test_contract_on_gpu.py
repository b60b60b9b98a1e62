"""On a GPU: what is read of compiled kernels is what they were written to do, and twice the same."""

import pytest

from gradprobe.commands.contract_request import contract_of
from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.cli.command import run
from tests.commands.test_contract import part_of

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
def test_what_our_kernels_round_is_read_as_it_is_written(dtype):
    for name, delta in (("flash", "from O as it is stored"), ("lazy", "the row sum of P dP")):
        found = read(name, dtype)
        assert found.unread == ()
        for gradient in ("dQ", "dK", "dV"):
            assert part_of(found, gradient, "sums")[0] == "float32"
        assert part_of(found, "dV", "P")[0] == dtype
        assert (
            part_of(found, "dQ", "dS")[0]
            == part_of(found, "dK", "dS")[0]
            == f"{dtype}, scaled after"
        )
        assert delta in part_of(found, "dQ", "delta")
    assert "in tiles of 64 keys" in part_of(read("flash", dtype), "O", "P")[0]


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
