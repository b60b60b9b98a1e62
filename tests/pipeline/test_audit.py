import pytest

from gradprobe.model.failures import ReferenceFailure, TargetFailure, UsageFailure
from gradprobe.pipeline.audit import audit, audited_target
from tests.pipeline import written
from tests.sampling import sampled

FILE = written.__file__


@sampled("name", written.WRONG, push=["no_scale_of_gradients"])
def test_a_wrong_reference_is_named_by_its_first_wrong_formula_with_its_line(name):
    made = audit(f"{FILE}:{name}", seeds=1)
    fault, line = written.WRONG[name]
    first, *others = made.diagnoses
    assert not made.attempt.is_right
    assert (first.fault, first.where[0].code[: len(line)]) == (fault, line)
    assert not others
    assert not made.known
    assert first.fix == "delta = rowsum(P * dP)" or "lazy" not in name


@sampled("name", written.RIGHT, push=["rows_before_heads", "by_grad"])
def test_a_right_reference_of_any_style_is_not_refused(name):
    made = audit(f"{FILE}:{name}", seeds=1)
    assert made.attempt.is_right
    assert made.attempt.case.shapes == written.RIGHT[name]
    assert made.diagnoses == made.known == ()


def test_of_a_variable_that_is_made_twice_the_wrong_line_is_shown_and_no_code_is_changed():
    code = written.unmasked_again.__code__
    (first,) = audit(written.unmasked_again, seeds=1).diagnoses
    where = first.where[0]
    assert (first.fault, where.code[: where.column]) == ("mask/causal", "P = ")
    assert where.code[where.column :][: where.length] == "torch.softmax(S, dim=-1)"
    assert written.unmasked_again.__code__ is code
    assert not any(name.startswith("__gradprobe") for name in vars(written))


def test_a_wrong_reference_is_refused_before_it_judges_with_formula_and_line():
    words = r"unmasked_again: the causal mask is left out \(written.py:\d+: P = torch.softmax"
    with pytest.raises(ReferenceFailure, match=words):
        audited_target(f"{FILE}:unmasked_again", None)


@sampled("reference, failure, words", [
    (lambda q, k, v, do: {}["a table"], TargetFailure, "raised KeyError .*'a table'"),
    (lambda q, k, v, do, table: None, UsageFailure, "needs a parameter 'table' that gradprobe has no value for"),
    (lambda q, k, v, do: {}, TargetFailure, "returned nothing to compare"),
    (lambda q, k, v, do: {"dQ": q[..., :1]}, TargetFailure, r"returned dQ of the wrong shape"),
], push=2)  # fmt: skip
def test_what_cannot_be_called_is_refused_with_what_it_raised(reference, failure, words):
    with pytest.raises(failure, match=words):
        audit(reference)


def test_a_reference_of_rows_before_heads_judges_as_it_takes_its_tensors():
    reference = audited_target(f"{FILE}:rows_before_heads", None)
    assert (reference.shapes, reference.implied) == ("blhd", ())
