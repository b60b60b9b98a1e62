"""S1: a kernel reads a tensor with another one's strides."""

from tests.faults.plain import BACKWARD, EVERYTHING, GRADIENTS, named, told, with_strides_of
from tests.sampling import sampled

DISTINCT = {"runs": ((("all", "distinct"),),)}
PLANTED = {
    "stride/do-head": ("do", "q", (1,), BACKWARD),
    "stride/do-row": ("do", "q", (2,), ("dkdv",)),
    "stride/v-batch": ("v", "k", (0,), BACKWARD),
    "stride/k-dim": ("k", "q", (3,), ("dq",)),
}


@sampled("exposed", [GRADIENTS, EVERYTHING], push=1)
@sampled("fault", PLANTED, push=1)
def test_a_stride_of_another_tensor_is_named_with_the_tensor_and_the_axis(fault, exposed):
    name, other, axes, kernels = PLANTED[fault]
    report = told(
        with_strides_of(name, other, axes, kernels), exposed=exposed, **DISTINCT, causal=True
    )
    assert named(report) == fault


def test_a_stride_that_only_an_expanded_do_shows_is_named_in_lazy_as_well():
    planted = with_strides_of("do", "q", (1,), ("dq",))
    report = told(planted, "lazy", runs=((("do", "expanded"),),))
    assert report.diagnoses[0].fault == "stride/do-head"
    assert report.diagnoses[0].summary == "dO is read with q's head stride"
    assert report.diagnoses[0].explained == 1.0


def test_a_stride_of_a_tensor_that_spans_gigabytes_is_named_without_a_copy_of_them():
    report = told(with_strides_of("do", "q", (1,), BACKWARD), batch=1, runs=((("do", "huge"),),))
    assert report.diagnoses[0].fault == "stride/do-head"
    assert report.known == ()
