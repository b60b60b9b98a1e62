"""What lint shows on one screen: no more findings than there is room for."""

from gradprobe.commands.kernel_reading import Inquiry, render_lint
from gradprobe.model.report import CauseLine
from gradprobe.source.lint import LintFinding

UNTOLD = tuple(f"{name} of kernel_{at}" for at in range(30) for name in ("q_ptr", "k_ptr"))


def finding(line, code="do_ptr += h * stride_qh"):
    where = CauseLine(
        "/f.py", line, code, 14, 9, f"kernel_{line}", "q's head stride", instead="stride_doh"
    )
    return LintFinding(where, "do", "q", "h")


def shown(*findings, **more):
    kernels = tuple(f"kernel_{at}" for at in range(30))
    inquiry = Inquiry("f.py", findings, kernels, UNTOLD)
    return [line.plain for line in render_lint(inquiry, 80, **more)]


def test_many_findings_take_24_rows_and_the_rest_are_counted():
    many = [finding(at, f"x{at}_ptr += h * stride_qh") for at in range(20)]
    lines = shown(*many)
    assert len(lines) <= 24
    assert "  and 17 wrong strides more: the same with --details" in lines
    assert sum("foreign" in line for line in shown(*many, details=True)) == 20
