"""References of the user's own beside a compiled kernel: in torch on the GPU, in numpy and for one head."""

import pytest

from gradprobe.model.failures import Failure
from gradprobe.testing import assert_backward_matches
from tests.auditing import written

pytestmark = pytest.mark.gpu
SIZES = {"heads": 2, "seqlen": 72, "head_dim": 32}
SMALL = SIZES | {"device": "cuda", "dtype": "float16", "causal": True}


@pytest.mark.parametrize(
    "name", ["by_einsum", "in_numpy", "by_scalar_loops", "rows_before_heads", "with_a_mask"]
)
def test_a_right_reference_judges_a_compiled_kernel_wherever_it_computes(name):
    report = assert_backward_matches("flash", reference=getattr(written, name), **SMALL)
    assert report.verdict == "match"


def test_a_wrong_one_is_refused_before_the_kernel_runs():
    with pytest.raises(Failure, match="the causal mask is left out"):
        assert_backward_matches("flash", reference=written.unmasked_again, **SMALL)
