"""A case with too many scores for hypotheses is explained on a smaller one, where one fails in the same way."""

from dataclasses import replace

from gradprobe.diagnosis.smaller import MOST_SCORES, smaller_failing
from gradprobe.inputs.draw import draw
from gradprobe.inputs.saved import SavedInputs, with_inputs
from gradprobe.probing.experiment import experiment_of
from tests.cases import softmax_case
from tests.diagnosis.backward import GRADIENTS, backward_with
from tests.faults.plain import Planted, softmax_target
from tests.probe import probe

LARGE = {"batch": 1, "heads": 2, "kv_heads": 2, "seqlen_q": 400, "seqlen_k": 400}
CONTIGUOUS = {"layouts": (("all", "contiguous"),)}


def target(folder, line):
    return backward_with(folder, line, results=("P", "dP", "dS", *GRADIENTS))


def test_causes_are_found_on_fewer_rows_in_every_layout_that_failed(tmp_path):
    case = softmax_case(**LARGE, recover=False, runs=((), (("do", "expanded"),)))
    assert case.scores > MOST_SCORES
    both = target(tmp_path, "dk = dk * 2; dv = dv * (3 if do.stride(3) == 0 else 1)")
    first, second = (one for one in probe(case, both).diagnoses if one.is_named)
    assert (first.fault, second.fault) == ("factor/dK", "factor/dV")
    on = "fails in the same way: --batch 1 --heads 2 --seqlen 80"
    assert any(said.endswith(on) for said in first.evidence)
    assert "in do=expanded: explains 100%" in second.evidence[0]


def test_a_smaller_case_of_which_nothing_is_left_does_not_fail_in_the_same_way(tmp_path):
    case = softmax_case(**LARGE, recover=False, runs=((),))
    (cause, *_) = probe(case, target(tmp_path, "dk = dk * 2 * (dk.shape[2] > 100)")).diagnoses
    assert cause.fault == "factor/dK"
    assert cause.evidence[-1].endswith("in the same way: --batch 1 --heads 2 --seqlen 144")


def test_where_every_smaller_case_matches_or_fails_otherwise_none_is_taken(tmp_path):
    case = softmax_case(**LARGE, **CONTIGUOUS)
    report = probe(case, target(tmp_path, "dk *= 1 + (dk.shape[1:3] == (2, 400))"))
    assert (report.diagnoses, report.sought) == ((), False)
    assert report.known[0].startswith("no cause was sought")
    otherwise = target(tmp_path, "(dk if dk.shape[1:3] == (2, 400) else dv).mul_(2)")
    assert smaller_failing(experiment_of(case, otherwise), [report.runs[0]]) is None


DOUBLED = Planted(make=lambda kernel, name, tensor: tensor * 2 if name == "dK" else tensor)


def test_of_values_of_a_file_a_smaller_case_is_drawn():
    drawn = softmax_case(**LARGE, causal=True)
    saved = SavedInputs(draw(drawn), {}, {"causal": True})
    options = with_inputs({}, saved, "values.pt", "softmax")
    case = replace(softmax_case(**options), recover=False)
    (cause, *_) = probe(case, softmax_target(DOUBLED), saved=saved).diagnoses
    assert cause.fault == "factor/dK"
    words = "a smaller case of drawn values that fails in the same way: --batch 1 --heads 2 --seqlen 80"
    assert words in cause.evidence[-1]
