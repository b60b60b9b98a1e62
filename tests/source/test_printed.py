"""The words of an edit that a cause prints, made an edit in all places that it names."""

import pytest

from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.printed import edits_printed
from gradprobe.source.text import edited

TEXT = """import triton

@triton.jit
def one(q, do, stride_qh, stride_doh):
    do += b * 2 + h * stride_qh

@triton.jit
def other(q, do, stride_qh, stride_dob):
    do += h*stride_qh

def launch(q, do):
    one[(1,)](q, do, q.stride(1), do.stride(1))
    other[(1,)](q, do, q.stride(1), stride_dob=do.stride(0))
"""
PIECES = [(5, 18, 9), (9, 8, 9)]
ADDED = (
    "h * stride_qh -> h * stride_doh in other; add a parameter stride_doh after stride_dob of other, "
    "and pass do.stride(1) for it in the launch at x.py:13"
)


@pytest.mark.parametrize(
    ("fix", "places", "changes"),
    [
        ("h * stride_qh -> h * stride_doh in one, other", PIECES, {
            "h * stride_qh": "h * stride_doh", "h*stride_qh": "h*stride_doh"}),
        ("in the launch: q.stride(1) -> do.stride(1)", [(12, 17, 11)], {"q.stride(1), do": "do.stride(1), do"}),
        (ADDED, PIECES[1:], {
            "h*stride_qh": "h*stride_doh", "stride_dob)": "stride_dob, stride_doh)",
            "stride_dob=do.stride(0)": "stride_dob=do.stride(0), stride_doh=do.stride(1)"}),
        ("address do by its own strides", PIECES, {}),
        ("h * stride_kh -> h * stride_doh", PIECES, {}),
    ],
)  # fmt: skip
def test_an_edit_is_made_of_its_words_or_not_at_all(fix, places, changes):
    expected = TEXT
    for old, new in changes.items():
        expected = expected.replace(old, new)
    assert edited(TEXT, edits_printed(KernelFile("x.py", TEXT), fix, places)) == expected
