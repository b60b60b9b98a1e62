"""Which elements CUDA kernels on the CPU touch: nothing is said of right ones, and the line of wrong ones."""

import pytest

from gradprobe.diagnosis.addresses import misread, visited_run
from gradprobe.frontends import source
from gradprobe.model.assignment import parse_layout
from gradprobe.probing.experiment import experiment_of
from gradprobe.targets.adapters import cuda_kernels
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.planting import Edit, Planted
from tests.sampling import sampled

SMALL = {"batch": 1, "heads": 2, "head_dim": 16, "block_m": 32, "block_n": 16}
# Three tiles of rows, the last one partial.
LENGTHS = {
    "flash-cuda": {"seqlen": 72, "causal": True},
    "lazy-cuda": {"seqlen": 40, "block_m": 16},
}
RESULTS = ("O", "LSE", "delta", "P", "dP", "dS", "dQ", "dK", "dV")
RIGHT = [
    ("flash-cuda", "distinct", {"heads": 4, "kv_heads": 2}),
    ("flash-cuda", "contiguous", {"window": (8, 4), "causal": False, "batch": 2}),
    ("flash-cuda", "packed", {"seqlens": (72, 11), "batch": 2}),
    ("flash-cuda", "do=expanded", {"dtype": "float16", "softcap": 5.0}),
    ("flash-cuda", "q=huge", {"heads": 4, "kv_heads": 1}),
    ("flash-cuda", "blhd", {"seqlen_q": 40, "seqlen_k": 72, "head_dim_v": 32}),
    ("flash-cuda", "contiguous", {"seqlen_q": 72, "seqlen_k": 40}),
    ("flash-cuda", "strided-last", {"seqlen": 16, "causal": False}),
    ("lazy-cuda", "distinct", {"batch": 2}),
    ("lazy-cuda", "blhd", {"seqlens": (40, 7), "batch": 2}),
    ("lazy-cuda", "contiguous", {"dtype": "float16", "bias": False}),
]


def visited(of, layout, options, file=None):
    case = lazy_case if of == "lazy-cuda" else softmax_case
    lengths = {
        x: n for x, n in LENGTHS[of].items() if x != "seqlen" or "seqlen_q" not in options
    }
    with pytest.MonkeyPatch.context() as patched:
        if file is not None:
            patched.setitem(cuda_kernels.SOURCES, of.removesuffix("-cuda"), file)
        experiment = experiment_of(case(**{**SMALL, **lengths, **options}), find_target(of))
        run = visited_run(experiment, (parse_layout(layout),))
    assert run is not None
    return run


@sampled("of, layout, options", RIGHT, push=(RIGHT[8],))
def test_a_right_kernel_is_accused_of_nothing(of, layout, options):
    run = visited(of, layout, options)
    assert len(run.launches) == 4
    assert misread(run, RESULTS) == []


DQ, DKDV, LAZY_DQ, LAZY_DKDV = "flash_dq", "flash_dkdv", "lazy_dq", "lazy_dkdv"
LATE_TILE = ("long long start_n = first_n;", "long long start_n = first_n + BLOCK_N;")
KEY_HEAD = ("k_ptr += b * stride_kb + kv_h", "k_ptr += b * stride_kb + h % (n_heads / group)")
# One compilation shows several; those of one kernel are of different tensors. The pairs are told where nothing else is.
PLANTED = {
    "flash-cuda": [
        ("load", "do", Edit("flash_preprocess", "h * stride_doh", "h * stride_oh")),
        ("load", "lse", Edit(DQ, "b * stride_lseb + h * stride_lseh", "b * stride_lseb")),
        ("load", "k", Edit(DQ, *KEY_HEAD)),
        ("load", "v", Edit(DQ, "stride_vn, stride_vn, stride_vd", "stride_vn, stride_vn, 1")),
        ("store", "dK", Edit(DKDV, "n * stride_dkn + d", "n * stride_dvn + d")),
    ],
    "lazy-cuda": [
        ("load", "bias", Edit(LAZY_DQ, "bias_ptr += h * stride_biash", "bias_ptr += 0 * stride_biash")),
        ("load", "do", Edit(LAZY_DKDV, "do_ptr += b * stride_dob + ", "do_ptr += ")),
        ("store", "dQ", Edit(LAZY_DQ, "b * stride_dqb + h", "b * stride_dqb + (n_heads - 1 - h)")),
    ],
    "flash-cuda alone": [("pairs", "dQ", Edit(DQ, *LATE_TILE))],
}  # fmt: skip
OPTIONS = {"flash-cuda": {"heads": 4, "kv_heads": 2}, "lazy-cuda": {"batch": 2}}


@sampled("which", PLANTED, push=["flash-cuda"])
def test_each_of_several_wrong_lines_is_told_by_its_tensor(which, tmp_path):
    of, planted = which.split()[0], PLANTED[which]
    changed = Planted("planted", of, tuple(edit for *_, edit in planted))
    file = tmp_path / "planted.cu"
    file.write_text(changed.plant())
    found = []
    for one in misread(visited(of, "distinct", OPTIONS[of], file), RESULTS):
        (line,) = {line.line for line in one.lines[-1:]}
        around = {line, *source(str(file)).address(line), *source(str(file)).loops(line)}
        found.append((one.kind, one.name, one.site.kernel, bool(around & changed.lines())))
    assert sorted(found) == sorted(
        (kind, name, edit.kernel, True) for kind, name, edit in planted
    )
