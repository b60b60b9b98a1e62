"""Where an intermediate gets its last value in a kernel."""

from gradprobe.diagnosis.lines import computed_at
from gradprobe.kernels.triton import flash, lazy


def code(found):
    return [(where.kernel, where.note.removesuffix(" is computed here"), where.code) for where in found]


def test_the_last_assignment_of_each_kernel_is_shown_and_loads_are_not():
    kernels = [lazy.lazy_preprocess_kernel, lazy.lazy_dq_kernel, lazy.lazy_dkdv_kernel]
    assert code(computed_at(kernels, ["dS", "delta"])) == [
        ("lazy_preprocess_kernel", "delta", "delta += tl.sum(p * dp, 1)"),
        ("lazy_dq_kernel", "dS", "ds = p * (dp - delta[:, None])"),
        ("lazy_dkdv_kernel", "dS", "ds = p * (dp - delta[None, :])"),
    ]


def test_a_value_that_is_loaded_and_then_masked_is_not_computed_there():
    assert computed_at([flash.flash_dq_kernel], ["LSE", "delta"]) == []
    (where,) = computed_at([flash.flash_dq_kernel], ["dS"])
    assert where.code == "ds *= steepness"


def test_the_python_functions_under_kernels_will_do():
    found = computed_at([flash.flash_dq_kernel.fn, flash.flash_dkdv_kernel.fn], ["dK"])
    assert code(found) == [("flash_dkdv_kernel", "dK", "dk += tl.dot(ds.to(q.dtype), q, input_precision=DOTS)")]
    (where,) = found
    with open(where.file, encoding="utf-8") as stream:
        assert stream.read().splitlines()[where.line - 1].strip() == where.code


def test_nothing_is_shown_of_what_has_no_source():
    assert computed_at([print], ["dS"]) == []
