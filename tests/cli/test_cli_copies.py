"""A wrapper that copies what lies oddly is run once more, with strides that it leaves as they are."""

from pathlib import Path

import pytest
import torch

from gradprobe.kernels.triton import flash
from tests.cli.command import run

pytestmark = [
    pytest.mark.usefixtures("without_causes"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter alone takes them"),
]

CASE = "--batch 1 --heads 2 --seqlen 20 --head-dim 16 --no-recover"
WRAPPED = """
from {kernels} import flash_black_box

def f(q, k, v, do, scale):
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return flash_black_box(q, k, v, do, scale=scale)
"""


def _written(folder: Path, name: str, read: str) -> None:
    """Modules of names of their own: one process imports a name once."""
    source = Path(flash.__file__).read_text(encoding="utf-8")
    right = "k_ptr += b * stride_kb + kv_h * stride_kh"
    assert right in source
    (folder / f"{name}.py").write_text(source.replace(right, read), encoding="utf-8")
    (folder / f"around_{name}.py").write_text(WRAPPED.replace("{kernels}", name))


@pytest.mark.nightly
def test_k_read_with_the_head_stride_of_v_behind_a_wrapper_that_copies_is_found(folder):
    _written(folder, "mixed", "k_ptr += b * stride_kb + kv_h * stride_vh")
    ran = run(f"check around_mixed.py:f {CASE}")
    assert ran.code == 1
    assert "  distinct       match" in ran.out
    assert "  distinct-unit  mismatch" in ran.out
