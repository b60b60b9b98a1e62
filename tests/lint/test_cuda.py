"""CUDA kernels are read from their text, and neither compiled nor run."""

import re

import pytest

from tests.lint.written import reading_of_word
from tests.planted.cuda_faults import ADAPTERS, KERNELS
from tests.planted.stride_mixups import DIMS, TENSORS, _stride
from tests.sampling import sampled

KERNEL = re.compile(r'^extern "C" __global__ void (\w+)\(.*?^}', re.MULTILINE | re.DOTALL)


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """What is found in a copy of a file with another text."""

    def linted(family, text):
        source = tmp_path / f"{family}.cu"
        source.write_text(text)
        monkeypatch.setattr(ADAPTERS[family], "SOURCE", source)
        return reading_of_word(f"{family}-cuda")

    return linted


def text_of(family):
    return (KERNELS / f"{family}.cu").read_text()


def mixed(text, kernel, own, other):
    """The text with one stride for another in one kernel's body."""
    match = next(match for match in KERNEL.finditer(text) if match.group(1) == kernel)
    start = text.index("{", match.start())
    return text[:start] + re.sub(rf"\b{own}\b", other, text[start : match.end()]) + text[match.end() :]


def mixups_of(family):
    """(kernel, tensor, other, axis, own stride, other's stride) of every pair that a kernel knows both of."""
    for match in KERNEL.finditer(text_of(family)):
        words = set(re.findall(r"\w+", match.group()))
        for tensor in TENSORS:
            for other in TENSORS:
                for axis, dim in enumerate(DIMS):
                    own, foreign = _stride(tensor, dim), _stride(other, dim)
                    if tensor != other and {own, foreign} <= words:
                        yield match.group(1), tensor, other, axis, own, foreign


@pytest.mark.parametrize("word", ["lazy-cuda", "flash-cuda"])
def test_right_kernels_have_no_finding(word):
    found = reading_of_word(word)
    assert found.findings == ()
    assert len(found.kernels) >= 4
    assert all(kernel.launched for kernel in found.kernels)


def test_a_file_that_no_compiler_takes_is_read_all_the_same(lint):
    found = lint("flash", text_of("flash") + "\nthis is no C++;\n")
    assert found.findings == ()
    assert found.read > 50


def test_the_head_stride_of_q_for_do_is_named_with_line_and_edit(lint):
    right = text_of("flash")
    text = mixed(right, "flash_dq", "stride_doh", "stride_qh")
    (finding,) = lint("flash", text).findings
    assert finding.code == "do_ptr += b * stride_dob + h * stride_qh;"
    assert text.splitlines()[finding.line - 1].strip() == finding.code
    assert finding.code[finding.column : finding.column + finding.length] == "stride_qh"
    assert (finding.kernel, finding.tensor, finding.other, finding.axis) == ("flash_dq", "do", "q", 1)
    assert finding.fix == "h * stride_qh -> h * stride_doh"


def test_lse_of_head_0_is_a_stride_that_is_never_used(lint):
    text = text_of("lazy").replace("lse_ptr += b * stride_lseb + h * stride_lseh;", "lse_ptr += b * stride_lseb;")
    found = lint("lazy", text).findings
    assert {(finding.rule, finding.tensor, finding.axis) for finding in found} == {("missing", "lse", 1)}


def test_strides_behind_two_pointers_of_one_call_are_neither_ones_and_it_is_said_of_both(lint):
    text = text_of("flash").replace(
        "load_rows(tile.lse, lse_ptr + start_m * stride_lsem, stride_lsem, live_m - start_m);",
        "load_both(tile.lse, lse_ptr, delta_ptr, stride_lsem, stride_deltam, live_m - start_m);",
    )
    assert text != text_of("flash")
    found = lint("flash", text)
    assert found.findings == ()
    assert {pointer for kernel in found.kernels for pointer in kernel.lost} == {"lse_ptr", "delta_ptr"}


@sampled("part", range(3), push=1)
@pytest.mark.parametrize("family", ["lazy", "flash"])
def test_every_mix_up_of_two_strides_in_a_kernel_is_named(family, part, lint, record_property):
    right, missed, planted = text_of(family), [], list(mixups_of(family))[18 * part :: 54]
    for kernel, tensor, other, axis, own, foreign in planted:
        text = mixed(right, kernel, own, foreign)
        pairs = zip(right.splitlines(), text.splitlines(), strict=True)
        lines = {at for at, (before, after) in enumerate(pairs, 1) if before != after}
        found = lint(family, text).findings
        named = {(each.rule, each.kernel, each.tensor, each.other, each.axis) for each in found}
        if named != {("foreign", kernel, tensor, other, axis)} or {each.line for each in found} != lines:
            missed.append((kernel, tensor, other, DIMS[axis]))
    count = len(planted)
    record_property("figure", f"{family}.cu: of {count} mix-ups of strides lint names {count - len(missed)}")
    assert missed == []
