"""Kernels in the mended interpreter: the kept language changes no bit, and a bfloat16 check is right end to end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.planted.lazy_faults import HISTORICAL
from tests.planted.planting import KERNELS
from tests.probe import probe

RESULTS = """
import hashlib
import sys
from gradprobe.model.resolution import resolve
from gradprobe.inputs.draw import draw
from gradprobe.runtime.backend import prepare_backend
prepare_backend("cpu")
from gradprobe.frontends.triton import interpreter
from gradprobe.kernels.triton.lazy import lazy_intermediates
patches = interpreter.language_patches
patches.patch("_patch_lang_tensor")
swaps, types = [0], [0]
block = interpreter.language_patches.tl.core.block_type
made = block.__init__
block.__init__ = lambda *args: (types.__setitem__(0, types[0] + 1), made(*args))[1]
if sys.argv[1] == "keep":
    interpreter.mend_interpreter()
scope = interpreter.language_patches.shipped._LangPatchScope
counted = scope.set_attr
scope.set_attr = lambda *args: (swaps.__setitem__(0, swaps[0] + 1), counted(*args))[1]
case = resolve({"batch": 1, "heads": 1, "seqlen": 33, "head_dim": 8, "seqlens": (20,)}, "lazy", takes_bias=True)
results = lazy_intermediates(**draw(case), block_m=16, block_n=32)
for name, value in results.items():
    print(name, hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest())
print(swaps[0], types[0], file=sys.stderr)
"""


def in_a_process(how: str) -> tuple[str, int, int]:
    """The digests of every result, and how often a name of the language was swapped, and a type was made."""
    done = subprocess.run(
        [sys.executable, "-c", RESULTS, how],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, *map(int, done.stderr.split()[-2:])


@pytest.mark.nightly  # two other processes
def test_keeping_the_language_patched_and_types_gives_the_same_bits_with_fewer_swaps_and_types():
    kept, swaps, types = in_a_process("keep")
    left, more_swaps, more_types = in_a_process("leave")
    assert kept == left
    assert len(kept.splitlines()) == 11
    assert swaps < more_swaps / 4
    assert types < more_types / 4


def test_a_bfloat16_check_matches_and_its_errors_are_those_of_bfloat16():
    report = probe(
        lazy_case(dtype="bfloat16", batch=1, heads=1, seqlen=40, head_dim=8), find_target("lazy")
    )
    assert report.verdict == "match"
    for _, measured in report.measured:
        findings = measured.comparison.findings
        assert len(findings) == 11
        # dV is stored in bfloat16, LSE never: as exact as float32 is.
        assert 1e-4 < findings["dV"].max_abs_err < 0.5
        assert findings["LSE"].max_abs_err < 1e-5


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)]
)
def test_do_read_with_q_head_stride_is_found_in_16_bits(tmp_path, dtype):
    file = tmp_path / "planted.py"
    file.write_text(HISTORICAL.plant((KERNELS / "lazy.py").read_text()))
    case = lazy_case(dtype=dtype, batch=1, heads=2, seqlen=20, head_dim=8)
    report = probe(case, find_target(f"{file}:lazy_intermediates"), why=False)
    first = report.failing[1].first
    assert (report.verdict, first.intermediate, first.head) == ("mismatch", "dP", 1)
