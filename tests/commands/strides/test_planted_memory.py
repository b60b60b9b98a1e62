"""Accesses outside a tensor, memory never written and offsets beyond 2^31, planted in the lazy kernels, are named."""

import pytest
import torch

from gradprobe.commands.survey import FIRST
from tests.commands.strides.benches import bench_for, trials_for
from tests.planted.planting import KERNELS, Edit, edited

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 37, "head_dim": 16, "bias": False}
DKDV = "lazy_dkdv_kernel"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"
STORE_DK = (
    "store_tile(dk_ptr, dk * scale, offs_n, offs_d, stride_dkn, stride_dkd, n_ctx, head_dim)"
)

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="only the interpreter sees every address"
)


def tried(folder, kernel, find, replace, *titles):
    """The results of the named layouts of lazy with an edit in one kernel, and the line of that edit."""
    source = edited((KERNELS / "lazy.py").read_text(), (Edit(kernel, find, replace),))
    (folder / "planted.py").write_text(source)
    line = source[: source.index(replace, source.index(f"def {kernel}("))].count("\n") + 1
    word = f"{folder / 'planted.py'}:lazy_intermediates"
    bench = bench_for(word, **OPTIONS)
    trials = trials_for(bench)
    return [bench.run(trials[title]) for title in titles], line


def test_a_write_behind_the_keys_of_dv_is_named_with_its_line_though_every_gradient_is_right(
    tmp_path,
):
    edit = STORE_DV.replace("n_ctx", "n_ctx + 32")
    (result, once), line = tried(tmp_path, DKDV, STORE_DV, edit, "distinct", "do=blhd")
    assert (result.verdict, once.tried.thorough) == ("mismatch", False)
    for memory in (result.memory, once.memory):  # a layout that is run once is watched too
        (stray,) = [one for one in memory if (one.kind, one.line) == ("outside", line)]
        assert (stray.tensor, stray.kernel) == ("dv", DKDV)
        assert "stores outside dv" in stray.sentence
    assert "guard" in {stray.kind for stray in result.memory}


def test_a_row_of_dk_that_is_never_written_is_wrong_there(tmp_path):
    edit = STORE_DK.replace("n_ctx", "n_ctx - 1")
    (result,), _ = tried(tmp_path, DKDV, STORE_DK, edit, "contiguous")
    place = result.first_mismatch
    assert (result.verdict, place.title, place.row) == ("mismatch", "dK", 36)


@pytest.mark.nightly
def test_a_read_of_memory_that_nothing_wrote_and_that_no_result_sees_is_no_finding(tmp_path):
    load = "delta = tl.load(delta_ptr + offs_m * stride_deltam, mask=offs_m < length, other=0.0)"
    source = (KERNELS / "lazy.py").read_text()
    empty = "delta = torch.empty((n_batch, n_heads, n_ctx"
    for find, replace in (
        (load, load.replace("offs_m < length", "offs_m < length + 5")),
        (f"{empty}),", f"{empty} + 8),"), ('"delta": delta,', '"delta": delta[:, :, :n_ctx],'),
    ):  # fmt: skip
        assert find in source
        source = source.replace(find, replace, 1)  # of the two loads, that of the dq kernel
    (tmp_path / "padded.py").write_text(source)
    word = f"{tmp_path / 'padded.py'}:lazy_intermediates"
    bench = bench_for(word, **OPTIONS)
    result = bench.run(FIRST)
    assert (result.verdict, result.memory) == ("match", ())
