import pytest

from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.lazy_faults import HISTORICAL
from tests.probe import probe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "options", [{}, {"dots": "tf32"}, {"dtype": "float16"}, {"dtype": "bfloat16"}], ids=str
)
def test_do_read_with_q_head_stride_is_named_with_its_three_lines(options, tmp_path):
    report = HISTORICAL.probe(tmp_path, sizes={"heads": 4, **options})
    cause = report.diagnoses[0]
    assert (cause.fault, cause.is_named) == ("stride/do-head", True)
    lines = HISTORICAL.plant().splitlines()
    code = "do_ptr += b * stride_dob + h * stride_qh"
    assert [where.code for where in cause.where] == [code] * 3
    assert all(lines[where.line - 1].strip() == where.code for where in cause.where)
    assert cause.fix.startswith("stride_qh -> stride_doh in lazy_preprocess_kernel")
    assert report.seconds["diagnose"] < 20  # 2 alone, 10 beside fourteen tests


def test_right_kernels_have_no_cause():
    for target, case in (
        ("lazy", lazy_case()),
        ("flash", softmax_case(dtype="bfloat16", causal=True)),
    ):
        report = probe(case, find_target(target))
        assert (report.verdict, report.diagnoses, report.known) == ("match", (), ())
