import pytest

from gradprobe.commands.kernel_reading import CLEAN, PARTLY
from gradprobe.source.lint import passed_of_others
from tests.source.lint_written import SOURCE, reading


def marked(finding):
    return finding.where.code[finding.where.column : finding.where.column + finding.where.length]


def test_the_file_as_it_is_is_clean_and_its_kernel_was_read(tmp_path):
    found = reading(tmp_path)
    assert (found.verdict, found.findings, found.kernels) == (CLEAN, (), ("touch_kernel",))


def test_a_stride_of_another_tensor_is_named_with_its_axis_line_and_the_edit(tmp_path):
    wrong = ("b * stride_dob + h * stride_doh", "b * stride_dob + h * stride_qh")
    (finding,) = reading(tmp_path, wrong).findings
    assert (finding.where.kernel, finding.where.note) == ("touch_kernel", "q's head stride")
    assert (finding.tensor, finding.other, finding.axis) == ("do", "q", "h")
    assert finding.sentence == "do is advanced by stride_qh, by its name q's head stride"
    assert (finding.fix, finding.where.instead) == ("stride_qh -> stride_doh", "stride_doh")


LSE = "lse_ptr + b * stride_lseb + h * stride_lseh"
# An edit, and of each finding the line, what is marked, the tensor and the other one.
FOUND = {
    "a function that is called": (
        ("offs_m[:, None] * stride_dom", "offs_m[:, None] * stride_qm"), [(10, "stride_qm", "do", "q")]),
    "the strides of a block pointer": (
        (f"tl.load({LSE} + offs_m * stride_lsem)",
         f"tl.load(tl.make_block_ptr({LSE}, (128,), (stride_dom,), (tile * BLOCK,), (BLOCK,), (0,)))"),
        [(31, "stride_dom", "lse", "do")]),
    "an offset of its own tensor": (("do_ptr += off_do", "do_ptr += off_q"), [(30, "off_q", "do", "q")] * 2),
    "a pointer and its stride chosen together": (("do_ptr += off_do", """if h == 0:
        x_ptr, step = q_ptr, stride_qm
    else:
        x_ptr, step = do_ptr, stride_dom
    x = tl.load(x_ptr + offs_m * step)
    do_ptr += off_do"""), []),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_and_where(tmp_path, name):
    edit, due = FOUND[name]
    found = reading(tmp_path, edit).findings
    assert [(one.where.line, marked(one), one.tensor, one.other) for one in found] == due


OWN_WAYS = {
    "a name that may be the pointer's own stride": """
@triton.jit
def own_kernel(D_ptr, DQ_ptr, stride_db, stride_dq, stride_dqb, stride_dqd, BLOCK: tl.constexpr):
    b, offs = tl.program_id(0), tl.arange(0, BLOCK)
    d = tl.load(D_ptr + b * stride_db + offs * stride_dq)
    tl.store(DQ_ptr + b * stride_dqb + offs * stride_dqd, d)
""",
    "one stride for all": """
@triton.jit
def shared_kernel(q_ptr, k_ptr, do_ptr, stride_qh, stride_qm, stride_km, stride_dom, BLOCK: tl.constexpr):
    h, offs = tl.program_id(0), tl.arange(0, BLOCK)
    q = tl.load(q_ptr + h * stride_qh + offs * stride_qm)
    k = tl.load(k_ptr + h * stride_qh + offs * stride_km)
    do = tl.load(do_ptr + h * stride_qh + offs * stride_dom)
    tl.store(q_ptr + offs, q * do * k)
""",
}


@pytest.mark.parametrize("name", OWN_WAYS)
def test_a_kernel_s_own_way_is_not_accused(tmp_path, name):
    assert reading(tmp_path, more=OWN_WAYS[name]).findings == ()


def test_strides_whose_names_tell_no_tensor_are_not_called_read(tmp_path):
    of_none = ("    stride_dob, stride_doh, stride_dom", "    stride_xb, stride_doh, stride_dom")
    found = reading(tmp_path, of_none, ("b * stride_dob", "b * stride_xb"))
    assert (found.verdict, found.untold) == (PARTLY, ("do_ptr of touch_kernel",))


LAUNCH = "*q.stride(), *do.stride(), *lse"


@pytest.mark.parametrize(
    ("passed", "places"),
    [
        ("*q.stride(), do.stride(0), q.stride(1), *do.stride()[2:], *lse", [("q.stride(1)", "do.stride(1)")]),
        ("*q.stride(), *q.stride(), *lse", [("q.stride()", "do.stride()")]),
        (LAUNCH, []),
        ("*q.stride(), q.stride(0), q.stride(1), q.stride(2), q.stride(3), *lse",
         [(f"q.stride({axis})", f"do.stride({axis})") for axis in range(4)]),
    ],
)  # fmt: skip
def test_a_launch_that_passes_anothers_stride_is_a_place_with_its_text(tmp_path, passed, places):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE.replace(LAUNCH, passed))
    found = passed_of_others(str(path), "touch_kernel", "do")
    assert [(marked(each), each.where.instead) for each in found] == places


def test_a_launch_in_another_file_than_the_kernels_is_read_too(tmp_path):
    kernel, launch = SOURCE.split("def launch")
    (tmp_path / "kernels.py").write_text(kernel)
    host = tmp_path / "host.py"
    imports = "from kernels import touch_kernel\n\n\ndef launch"
    host.write_text(imports + launch.replace("*do.stride()", "*q.stride()"))
    kernels = str(tmp_path / "kernels.py")
    (finding,) = passed_of_others(kernels, "touch_kernel", "do", host=str(host))
    fix = "in the launch: q.stride() -> do.stride()"
    assert (finding.where.file, finding.fix) == (str(host), fix)
