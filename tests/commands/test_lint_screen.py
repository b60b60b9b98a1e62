"""What lint shows on one screen: no more findings than there is room for."""

from gradprobe.commands.kernel_reading import Inquiry, render_lint
from gradprobe.lint.reading import KernelReading, LintFinding, ReadKernel
from gradprobe.model.report import Where


def finding(line, code="do_ptr += h * stride_qh"):
    sentence = "do is advanced by stride_qh, which is q.stride(1): stride_doh = do.stride(1) is passed and never used"
    where = Where("/f.py", line, code, 14, 9, f"kernel_{line}")
    return LintFinding(where, sentence, "use stride_doh", "do")


def shown(*findings, **more):
    kernels = tuple(ReadKernel(f"kernel_{at}", "/f.py", at, at < 2, 3, ["q_ptr", "k_ptr"]) for at in range(30))
    return [line.plain for line in render_lint(Inquiry("f.py", KernelReading(findings, kernels), (), ()), 80, **more)]


def test_many_findings_take_24_rows_and_the_rest_are_counted():
    many = [finding(at, f"x{at}_ptr += h * stride_qh") for at in range(20)]
    lines = shown(*many)
    assert len(lines) <= 24
    assert "  and 18 wrong strides more: the same with --details" in lines
    assert sum("^^^" in line for line in shown(*many, details=True)) == 20


def test_a_clean_file_takes_10_rows():
    assert len(shown()) <= 10


def test_what_could_not_be_followed_is_not_called_clean():
    assert shown()[0] == "PARTLY READ  what was read has no wrong stride; what was not is named below (f.py)"
    assert any("could not be followed everywhere: q_ptr of kernel_0" in line for line in shown(details=True))
    assert shown(finding(3))[0].startswith("FINDINGS")
