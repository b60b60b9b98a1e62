import pytest
import torch

from tests.commands.strides.benches import bench_for, trials_for
from tests.planted.planting import KERNELS, Edit, edited

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 37, "head_dim": 16, "bias": False}
DKDV = "lazy_dkdv_kernel"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"

interpreted = "only the interpreter sees every address"
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason=interpreted)


def tried(folder, kernel, find, replace, *titles):
    """The results of the named layouts of lazy with an edit in one kernel, and the line of that edit."""
    source = edited((KERNELS / "lazy.py").read_text(), (Edit(kernel, find, replace),))
    (folder / "planted.py").write_text(source)
    line = source[: source.index(replace, source.index(f"def {kernel}("))].count("\n") + 1
    word = f"{folder / 'planted.py'}:lazy_intermediates"
    bench = bench_for(word, **OPTIONS)
    trials = trials_for(bench)
    return [bench.run(trials[title]) for title in titles], line


def test_a_write_behind_the_keys_of_dv_is_named_with_its_line(tmp_path):
    edit = STORE_DV.replace("n_ctx", "n_ctx + 32")
    (result, once), line = tried(tmp_path, DKDV, STORE_DV, edit, "distinct", "do=blhd")
    assert (result.verdict, once.tried.thorough) == ("mismatch", False)
    for memory in (result.memory, once.memory):  # a layout that is run once is watched too
        (stray,) = [one for one in memory if (one.kind, one.line) == ("outside", line)]
        assert (stray.tensor, stray.kernel) == ("dv", DKDV)
        assert "stores outside dv" in stray.sentence
    assert "guard" in {stray.kind for stray in result.memory}
