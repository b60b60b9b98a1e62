"""Each kind of finding names tensor, stride, place and edit; kernels that are right in their own way give none."""

from tests.lint.written import reading


def marked(finding):
    """What the caret stands under."""
    return finding.where.code[finding.where.column : finding.where.column + finding.where.length]


def test_the_file_as_it_is_is_clean_and_its_kernel_was_read(tmp_path):
    found = reading(tmp_path)
    assert found.findings == ()
    assert [(kernel.name, kernel.launched, kernel.accesses, kernel.lost) for kernel in found.kernels] == [
        ("touch_kernel", True, 4, [])
    ]


def test_a_stride_of_another_tensor_is_named_with_both_axes_its_line_and_the_edit(tmp_path):
    (finding,) = reading(tmp_path, ("b * stride_dob + h * stride_doh", "b * stride_dob + h * stride_qh")).findings
    assert (finding.where.kernel, finding.where.line, marked(finding)) == ("touch_kernel", 28, "stride_qh")
    assert (finding.tensor, finding.other, finding.axis, finding.kind) == ("do", "q", 1, "h")
    assert finding.where.code == "off_do = b * stride_dob + h * stride_qh"
    assert finding.where.note == "q.stride(1)"
    assert finding.sentence == (
        "do is advanced by stride_qh, which is q.stride(1): stride_doh = do.stride(1) is passed"
    )
    assert (finding.fix, finding.where.instead) == ("stride_qh -> stride_doh", "stride_doh")


def test_where_the_right_stride_is_no_parameter_it_is_said_and_no_edit_is(tmp_path):
    (finding,) = reading(
        tmp_path,
        ("    stride_dob, stride_doh, stride_dom, stride_dod,\n", "    stride_dob, stride_dom, stride_dod,\n"),
        ("b * stride_dob + h * stride_doh", "b * stride_dob + h * stride_qh"),
        ("*q.stride(), *do.stride(), *lse", "*q.stride(), do.stride(0), do.stride(2), do.stride(3), *lse"),
    ).findings
    assert finding.sentence == "do is advanced by stride_qh, which is q.stride(1): do.stride(1) is never passed"
    assert finding.fix == ""


def test_an_offset_that_is_right_for_its_own_tensor_is_wrong_where_it_is_added_to_another(tmp_path):
    found = reading(tmp_path, ("do_ptr += off_do", "do_ptr += off_q")).findings
    assert {(finding.where.line, finding.where.code, marked(finding)) for finding in found} == {
        (30, "do_ptr += off_q", "off_q")
    }
    assert {(finding.tensor, finding.other, finding.fix) for finding in found} == {("do", "q", "")}


def test_a_name_that_another_pointer_takes_rightly_is_not_to_be_replaced(tmp_path):
    found = reading(
        tmp_path,
        ("    off_q = b", "    rows = stride_qm\n    off_q = b"),
        (
            "(q_ptr, do_ptr, offs_m, offs_d, stride_qm, stride_qd, stride_dom, stride_dod) -",
            "(q_ptr, do_ptr, offs_m, offs_d, rows, stride_qd, rows, stride_dod) -",
        ),
    ).findings
    assert [(finding.tensor, finding.fix) for finding in found] == [("do", "")]


def test_a_function_that_is_called_is_blamed_where_its_own_names_contradict_each_other(tmp_path):
    (finding,) = reading(tmp_path, ("offs_m[:, None] * stride_dom", "offs_m[:, None] * stride_qm")).findings
    assert (finding.where.line, marked(finding), finding.where.kernel) == (10, "stride_qm", "touch_kernel")


def test_a_launch_that_passes_anothers_stride_is_blamed_at_its_own_line(tmp_path):
    (finding,) = reading(
        tmp_path,
        ("*q.stride(), *do.stride(), *lse", "*q.stride(), do.stride(0), q.stride(1), *do.stride()[2:], *lse"),
    ).findings
    assert (finding.where.kernel, finding.where.line, marked(finding)) == (
        "touch_kernel",
        40,
        "q.stride(1)",
    )
    assert finding.sentence == (
        "parameter stride_doh of touch_kernel is given q.stride(1) in the launch at mine.py:38, "
        "so do is read with q's stride"
    )
    assert (finding.fix, finding.where.instead) == ("in the launch: q.stride(1) -> do.stride(1)", "do.stride(1)")


def test_parameters_with_a_default_do_not_shift_those_that_a_launch_gives(tmp_path):
    (finding,) = reading(
        tmp_path,
        ("n_heads, BLOCK: tl.constexpr, D: tl.constexpr,", "n_heads, BLOCK: tl.constexpr = 32, D: tl.constexpr = 32,"),
        ("*q.stride(), *do.stride(), *lse", "*q.stride(), do.stride(0), q.stride(1), *do.stride()[2:], *lse"),
    ).findings
    assert (finding.where.line, marked(finding)) == (40, "q.stride(1)")
    assert finding.fix == "in the launch: q.stride(1) -> do.stride(1)"


def test_all_strides_of_another_tensor_in_a_launch_are_one_finding(tmp_path):
    (finding,) = reading(tmp_path, ("*q.stride(), *do.stride(), *lse", "*q.stride(), *q.stride(), *lse")).findings
    assert (finding.where.line, marked(finding), finding.axis) == (40, "q.stride()", None)
    assert (finding.fix, finding.where.instead) == ("in the launch: *q.stride() -> *do.stride()", "do.stride()")


def test_each_of_four_strides_of_another_tensor_in_a_launch_is_a_place_with_the_text_that_belongs_there(tmp_path):
    each = ", ".join(f"q.stride({axis})" for axis in range(4))
    found = reading(tmp_path, ("*q.stride(), *do.stride(), *lse", f"*q.stride(), {each}, *lse")).findings
    assert sorted(finding.where.instead for finding in found) == [f"do.stride({axis})" for axis in range(4)]


def test_a_kernel_that_is_never_launched_is_read_by_its_names_and_says_so(tmp_path):
    sibling = """

@triton.jit
def sibling_kernel(q_ptr, do_ptr, out_ptr, stride_qh, stride_qm, stride_doh, stride_dom, BLOCK: tl.constexpr):
    h, offs = tl.program_id(0), tl.arange(0, BLOCK)
    q = tl.load(q_ptr + h * stride_qh + offs * stride_qm)
    do = tl.load(do_ptr + h * stride_qh + offs * stride_dom)
    tl.store(out_ptr + offs, q * do)
"""
    found = reading(tmp_path, more=sibling)
    (finding,) = found.findings
    assert finding.by_name
    assert (finding.where.kernel, finding.tensor, finding.other, marked(finding)) == (
        "sibling_kernel",
        "do",
        "q",
        "stride_qh",
    )
    assert "by its name a stride of" in finding.sentence
    assert finding.fix == "stride_qh -> stride_doh"
    assert [(kernel.name, kernel.launched) for kernel in found.kernels] == [
        ("touch_kernel", True), ("sibling_kernel", False),
    ]  # fmt: skip


def test_a_name_that_may_be_read_as_the_pointers_own_stride_is_not_accused(tmp_path):
    sibling = """

@triton.jit
def own_kernel(D_ptr, DQ_ptr, stride_db, stride_dq, stride_dqb, stride_dqd, BLOCK: tl.constexpr):
    b, offs = tl.program_id(0), tl.arange(0, BLOCK)
    d = tl.load(D_ptr + b * stride_db + offs * stride_dq)
    tl.store(DQ_ptr + b * stride_dqb + offs * stride_dqd, d)
"""
    found = reading(tmp_path, more=sibling)
    assert found.findings == ()
    assert [kernel.name for kernel in found.kernels] == ["touch_kernel", "own_kernel"]


def test_one_stride_for_all_of_a_sibling_is_its_way_and_no_fault(tmp_path):
    shared = """

@triton.jit
def shared_kernel(q_ptr, k_ptr, do_ptr, stride_qh, stride_qm, stride_km, stride_dom, BLOCK: tl.constexpr):
    h, offs = tl.program_id(0), tl.arange(0, BLOCK)
    q = tl.load(q_ptr + h * stride_qh + offs * stride_qm)
    k = tl.load(k_ptr + h * stride_qh + offs * stride_km)
    do = tl.load(do_ptr + h * stride_qh + offs * stride_dom)
    tl.store(q_ptr + offs, q * do * k)
"""
    assert reading(tmp_path, more=shared).findings == ()


def test_one_stride_for_tensors_that_the_wrapper_holds_to_equal_strides_is_right(tmp_path):
    found = reading(
        tmp_path,
        ("*q.stride(), *do.stride(), *lse", "*q.stride(), *q.stride(), *lse"),
        ("def backward(q, k, v, do):\n", "def backward(q, k, v, do):\n    assert q.stride() == do.stride()\n"),
    )
    assert found.findings == ()
    assert [kernel.accesses for kernel in found.kernels] == [4]


def test_one_stride_for_contiguous_copies_of_one_shape_is_right(tmp_path):
    found = reading(
        tmp_path,
        ("*q.stride(), *do.stride(), *lse", "*q.stride(), *q.stride(), *lse"),
        ("    launch(q, do, lse, dq)", "    launch(q.contiguous(), do.contiguous(), lse, dq)"),
    )
    assert found.findings == ()


def test_a_stride_is_found_behind_copies_of_what_has_no_unit_last_stride(tmp_path):
    launch = "    launch(q, do, lse, dq)"
    copied = "    q, do = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, do[..., : q.shape[-1]]))\n"
    edits = ((launch, copied + launch), ("b * stride_dob + h * stride_doh", "b * stride_dob + h * stride_qh"))
    (finding,) = reading(tmp_path, *edits).findings
    assert finding.sentence.startswith("do is advanced by stride_qh")


def test_strides_of_a_tensor_that_an_operation_made_from_another_of_its_shape_are_right(tmp_path):
    again = (
        "    touch_kernel[(1, 1)](q, do, torch.exp(lse), dq, *q.stride(), *do.stride(), *lse.stride(), *dq.stride(), "
        "q.shape[1], BLOCK=32, D=32)\n"
    )
    launch = "    launch(q, do, lse, dq)\n"
    assert reading(tmp_path, (launch, launch + again)).findings == ()


def test_a_target_that_fails_or_launches_nothing_has_no_findings_and_raises_nothing(tmp_path):
    broken = reading(tmp_path, ("    dq = torch.empty_like(q)\n", "    dq = undefined\n"))
    assert (broken.findings, [kernel.launched for kernel in broken.kernels]) == ((), [False])
    idle = reading(tmp_path, ("    launch(q, do, lse, dq)\n", ""))
    assert (idle.findings, [kernel.launched for kernel in idle.kernels]) == ((), [False])


def test_a_target_that_reads_what_its_kernels_wrote_is_caught_before_it_fails(tmp_path):
    found = reading(
        tmp_path, ("    launch(q, do, lse, dq)\n", "    launch(q, do, lse, dq)\n    assert dq.flatten()[0] != 0\n")
    )
    assert [kernel.launched for kernel in found.kernels] == [True]


def test_a_tuned_kernel_is_caught_in_its_first_configuration(tmp_path):
    tuned = (
        '@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n_heads"])\n@triton.jit\n'
    )
    found = reading(
        tmp_path,
        ("@triton.jit\ndef touch", f"{tuned}def touch"),
        ("q.shape[1], BLOCK=32, D=32", "q.shape[1], D=32"),
        ("b * stride_dob + h * stride_doh", "b * stride_dob + h * stride_qh"),
    )
    assert [(finding.tensor, finding.other) for finding in found.findings] == [("do", "q")]


def test_a_block_pointers_strides_are_read(tmp_path):
    block = (
        "tl.load(tl.make_block_ptr(lse_ptr + b * stride_lseb + h * stride_lseh, (128,), (stride_dom,), "
        "(tile * BLOCK,), (BLOCK,), (0,)))"
    )
    found = reading(
        tmp_path, ("tl.load(lse_ptr + b * stride_lseb + h * stride_lseh + offs_m * stride_lsem)", block)
    ).findings
    assert [(finding.tensor, finding.other, marked(finding)) for finding in found] == [("lse", "do", "stride_dom")]


def test_a_target_that_takes_packed_sequences_only_is_given_some(tmp_path):
    found = reading(
        tmp_path,
        ("def backward(q, k, v, do):", "def backward(q, k, v, do, cu_seqlens):"),
        ("b * stride_dob + h * stride_doh", "b * stride_dob + h * stride_qh"),
    )
    assert [(finding.tensor, finding.other) for finding in found.findings] == [("do", "q")]


def test_what_only_a_later_turn_of_a_loop_does_is_read_too(tmp_path):
    loop = """again = False
    for _ in range(2):
        if again:
            do_ptr += b * stride_dob + h * stride_qh
        again = True"""
    (finding,) = reading(tmp_path, ("do_ptr += off_do", loop)).findings
    assert (finding.tensor, finding.other, finding.where.line) == ("do", "q", 33)


def test_a_pointer_and_its_stride_that_one_branch_chooses_together_are_not_accused(tmp_path):
    chosen = """if h == 0:
        x_ptr, step = q_ptr, stride_qm
    else:
        x_ptr, step = do_ptr, stride_dom
    x = tl.load(x_ptr + offs_m * step)
    do_ptr += off_do"""
    assert reading(tmp_path, ("do_ptr += off_do", chosen)).findings == ()


def test_what_the_wrapper_allocates_with_rows_before_heads_has_no_axes_swapped(tmp_path):
    found = reading(
        tmp_path,
        ("*lse.stride(), *dq.stride()", "*lse.stride(), dq.stride(0), dq.stride(2), dq.stride(1), dq.stride(3)"),
        ("dq = torch.empty_like(q)", "dq = torch.empty_like(q.transpose(1, 2))"),
        ('return {"dQ": dq}', 'return {"dQ": dq.transpose(1, 2)}'),
    )
    assert found.findings == ()


def test_strides_that_are_passed_as_a_tuple_are_not_followed_and_this_is_said(tmp_path):
    found = reading(
        tmp_path,
        ("    stride_qb, stride_qh, stride_qm, stride_qd,\n", "    strides_q,\n"),
        ("    off_q = b", "    stride_qb, stride_qh, stride_qm, stride_qd = strides_q\n    off_q = b"),
        ("*q.stride(), *do.stride(), *lse", "q.stride(), *do.stride(), *lse"),
    )
    assert found.findings == ()
    assert [kernel.lost for kernel in found.kernels] == [["strides_q"]]
